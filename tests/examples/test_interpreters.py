"""The interpreters that execute the code blocks of pages."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.doc_blocks import BlockFailed, BlockRunner, CodeBlock, blocks_of, interpreters, matches

PAGE = """\
```python title="not run"
1 / 0
```

=== "Tab"

    ```bash
    echo one
    echo two
    ```

```text title="output"
one
...
```

```yaml
a: 1
```
"""


@pytest_asyncio.fixture
async def runner(tmp_path: Path) -> AsyncIterator[BlockRunner]:
    async with interpreters(tmp_path, {"PATH": os.environ["PATH"]}) as runner:
        yield runner


def block(language: str, source: str) -> CodeBlock:
    return CodeBlock("page.md:1", language, source, None)


def test_executable_blocks_are_found_with_their_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert blocks_of(page) == [CodeBlock("page.md:7", "bash", "echo one\necho two\n", "one\n...\n")]


def test_output_matches_with_ellipsis_and_without_trailing_spaces() -> None:
    assert matches("one\n...\nthree\n", "one \ntwo\nthree\n\n")
    assert not matches("one\n", "two\n")


async def test_later_blocks_see_names_of_earlier_blocks(runner: BlockRunner) -> None:
    for language, first, second in (("python", "x = 1", "print(x)"), ("bash", "x=1", "echo $x")):
        await runner.run(block(language, first))
        assert await runner.run(block(language, second)) == "1\n"


@pytest.mark.parametrize(
    ("language", "source"), [("python", "1 / 0"), ("bash", "false\necho late"), ("bash", "no-such")]
)
async def test_failing_block_raises(runner: BlockRunner, language: str, source: str) -> None:
    with pytest.raises(BlockFailed, match=r"page\.md:1"):
        await runner.run(block(language, source))
