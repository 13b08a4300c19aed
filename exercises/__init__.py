"""The chapters' exercises: one file per chapter, with holes for you to fill in. Start with `python check.py`."""


class Todo(NotImplementedError):
    """What a hole raises until it is filled in. The checks read it as "not written yet", never as wrong."""
