.PHONY: unit test lint docs wheels
unit: ; python -m pytest -m unit
test: ; python -m pytest
lint: ; ruff check && ruff format --check && mypy && bandit -q -c pyproject.toml -r src
docs: ; mkdocs build --strict
wheels: ; .ci/wheels
