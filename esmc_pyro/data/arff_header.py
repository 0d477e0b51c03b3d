"""The header of an ARFF file: its relation name and its attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from esmc_pyro.data.errors import check_column_count
from esmc_pyro.data.lines import Lines

_QUOTED = r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+\""""
_NAME_AND_TYPE = re.compile(rf"({_QUOTED}|[^\s{{'\"][^\s{{]*+)\s*+(.+)", re.DOTALL)
# Possessive and without two ways to match the same text: the time is linear whatever comes.
_VALUE = re.compile(rf"{_QUOTED}|[^\s,{{}}'\"][^\s,{{}}]*+")
_LIST = re.compile(rf"\{{\s*+(?:{_VALUE.pattern})(?:\s*+,\s*+(?:{_VALUE.pattern}))*+\s*+\}}")


@dataclass(frozen=True)
class Attribute:
    """A column: a number, one of the declared nominal `values`, or (`is_text`) a text."""

    name: str
    values: tuple[str, ...] | None = None
    is_text: bool = False

    @property
    def is_number(self) -> bool:
        """Neither nominal nor text."""
        return self.values is None and not self.is_text


def read_header(text: Iterator[str], lines: Lines) -> tuple[str, list[Attribute]]:
    """Relation name and attributes; afterwards `text` stands at the first line after `@data`."""
    relation: str | None = None
    attributes: dict[str, Attribute] = {}
    for line in text:
        line = line.strip()
        if not line or line.startswith("%"):
            continue
        keyword, _, rest = line.replace("\t", " ").partition(" ")
        match keyword.lower():
            case "@relation" if relation is None and not attributes:
                relation = _unquote(rest.strip())
            case "@attribute":
                attribute = _attribute(rest.strip(), lines)
                if attribute.name in attributes:
                    raise lines.bad(f"attribute {attribute.name!r} is declared twice, expected names that differ.")
                attributes[attribute.name] = attribute
            case "@data":
                if not attributes:
                    raise lines.bad("@data comes before any @attribute, expected at least one.")
                check_column_count(lines.path, "the number of attributes", len(attributes))
                return relation or "", list(attributes.values())
            case _:
                raise lines.bad(f"the line starts with {keyword[:40]!r}, expected @relation, @attribute or @data.")
    raise lines.bad("the file ends before @data, expected an ARFF header and rows.")


def _attribute(declaration: str, lines: Lines) -> Attribute:
    found = _NAME_AND_TYPE.fullmatch(declaration)
    if found is None:
        raise lines.bad(f"the attribute is declared {declaration[:40]!r}, expected a name and a type.")
    name, kind = _unquote(found[1]), found[2].strip()
    if _LIST.fullmatch(kind):
        values = tuple(_unquote(value) for value in _VALUE.findall(kind))
        if len(set(values)) != len(values):
            raise lines.bad(f"attribute {name!r} lists a value twice, expected values that differ.")
        return Attribute(name, values)
    match kind.lower():
        case "numeric" | "real" | "integer":
            return Attribute(name)
        case "string":
            return Attribute(name, is_text=True)
    raise lines.bad(f"attribute {name!r} has type {kind[:40]!r}, expected numeric, string or a list like {{0,1}}.")


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text
