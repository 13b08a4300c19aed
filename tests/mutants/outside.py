"""Bugs in what guards the lab against tokenizers, templates, names and records from outside."""

import contextlib
from collections.abc import Iterator

from speclab.models import loading
from speclab.models.outside import growth, templates
from speclab.present import tables
from speclab.records import facts
from speclab.system import errors, files, terminal
from tests.mutants.bugs import mutant
from training import work


@mutant(44, "a_row_of_parts_that_multiply_is_refused_unread", file="models/test_growth")
def adds_what_parts_make() -> None:
    """takes the largest part of a row for all of it"""
    right = growth.factor

    def factor(part: object) -> float:
        if isinstance(part, dict) and part.get("type") == "Sequence":
            return max((factor(inner) for name in growth.ROWS for inner in part.get(name, [])), default=1.0)
        return right(part)

    growth.factor = factor


@mutant(44, "the_tokenizer_that_the_library_chooses_is_checked_unread", file="models/test_loading")
def checks_the_file_of_the_usual_name() -> None:
    """checks tokenizer.json where the library loads another file"""
    loading.get_fast_tokenizer_file = lambda _: "tokenizer.json"


@mutant(44, "standard_error_comes_back_where_two_threads_lose_it_at_once", file="system/test_errors")
def lets_each_thread_redirect() -> None:
    """keeps what another thread made of standard error for what it was"""

    @contextlib.contextmanager
    def without_stderr() -> Iterator[None]:
        own = terminal._Silence()
        own.begin()
        yield
        own.end()

    terminal.without_stderr = without_stderr


@mutant(44, "several_chats_are_one_process_and_what_was_rendered_costs_none", file="models/test_chat")
def renders_in_this_process() -> None:
    """runs the template of a tokenizer where no limit of time or memory holds"""

    def rendered(chats: list, tokenizer: object) -> list[str]:
        return [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]

    templates.rendered = rendered


@mutant(44, "a_panic_in_one_step_keeps_the_others", file="system/test_errors")
def lets_a_panic_end_all_steps() -> None:
    """raises a panic at once, before what is measured is written"""

    def do_all(todo: list, remark: str = "") -> int:
        for step in todo:
            step()
        return 0

    files.do_all = do_all


@mutant(44, "a_panic_is_one_line_and_only_what_ends_a_program_passes", file="system/test_errors")
def takes_an_end_for_a_panic() -> None:
    """takes everything that is no usual exception for a panic of a library, a cancelled task among them"""
    errors.is_panic = lambda error: not isinstance(error, (Exception, KeyboardInterrupt, SystemExit, GeneratorExit))


@mutant(44, "nothing_of_a_name_is_markup_in_markdown", file="present/test_markdown")
def leaves_a_bar_in_a_cell() -> None:
    """writes a name with a bar into a table, which gets one cell more"""
    tables._cell = tables.escaped


@mutant(44, "a_record_that_was_read_can_be_shown", file="cli/test_fuzz")
def does_not_look_into_the_dicts_of_a_record() -> None:
    """checks the fields of a record, and nothing of the dicts in them"""
    facts.Entries.__get_pydantic_core_schema__ = lambda self, source, handler: handler(source)


@mutant(44, "a_checkpoint_with_wrong_facts_is_one_line[an optimizer's number in words]", file="training/test_training")
def believes_the_optimizer_of_a_checkpoint() -> None:
    """goes on with whatever numbers a checkpoint has for the optimizer"""
    work._load_stepper = lambda stepper, saved: stepper.load_state_dict(saved)
