"""Adds GGUF files, and models that a package brings as one, to the names of models."""

from speclab.extensions.gguf import packaged, source
from speclab.models import sources

sources.add(
    sources.Source("FILE.gguf", source.is_file_name, source.check_file, source.converted_folder, source.description)
)
for name in packaged.MODELS:
    sources.add(packaged.as_source(name))
