"""Writer of the dated record of the planner's comparison (text and pictures) from the results of `bench.planner`.

    python -m bench.planner_cases.record RECORD.json... --output docs/planner-comparison/DATE.md

`RECORD` is a file with the JSON object that `bench.planner` prints as its last line, or the folder that was given to it
as `--keep`; several are put together. Pictures are written next to the text, and their names begin with its name. The
text says which sections were not measured, unless `--only` limits the record to some. Nothing is measured here.
`--index` names the page whose last section, "Records", lists all records of that folder, the newest first.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.planner import SECTIONS
from bench.planner_cases.report.page import PICTURES, page_of
from bench.planner_cases.report.records import merged, read

RECORDS = "## Records\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORD", help="JSON record, or folder of kept rows")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), help="this section; may be repeated")
    parser.add_argument("--output", type=Path, required=True, help="the Markdown file; its name is the record's date")
    parser.add_argument("--index", type=Path, help="page that lists records, docs/planner-comparison.md")
    arguments = parser.parse_args()
    try:
        record = merged([read(path) for path in arguments.records])
        if arguments.only:
            parts = {name: part for name, part in record.parts.items() if name in arguments.only}
            record = replace(record, parts=parts)
        text, pictures = page_of(record, arguments.output.stem)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    output: Path = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        output.with_name(f"{output.stem}-{picture}.svg").unlink(missing_ok=True)
    for name, content in {output.name: text, **pictures}.items():
        (output.parent / name).write_text(content, encoding="utf-8")
    print("\n".join(str(output.parent / name) for name in (output.name, *pictures)))
    if arguments.index:
        page = arguments.index.read_text(encoding="utf-8")
        arguments.index.write_text(listed(page, output.parent.name, output.parent.glob("*.md")), encoding="utf-8")
    return 0


def listed(page: str, folder: str, records: Iterable[Path]) -> str:
    """Return the page with these records listed in its last section. Raises: ValueError if it has no such section."""
    before, heading, section = page.partition(RECORDS)
    if not heading:
        raise ValueError(f"the index has no section {RECORDS.strip()!r}")
    words = "\n".join(line for line in section.splitlines() if not line.startswith("- [")).strip()
    links = [f"- [{name}]({folder}/{name}.md)" for name in sorted((each.stem for each in records), reverse=True)]
    return f"{before}{heading}\n{words}\n\n" + "\n".join(links) + "\n"


if __name__ == "__main__":
    sys.exit(main())
