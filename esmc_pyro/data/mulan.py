"""Mulan files: an ARFF table and an XML list that says which of its attributes are labels."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from xml.etree.ElementTree import ParseError

from defusedxml import ElementTree

from esmc_pyro.data.arff_file import read_arff
from esmc_pyro.data.dataset import Dataset
from esmc_pyro.data.errors import data_error
from esmc_pyro.data.pair import dataset_of_pair


def read_mulan(
    path: str | PathLike[str],
    test_path: str | PathLike[str] | None = None,
    *,
    xml: str | PathLike[str],
    name: str | None = None,
) -> Dataset:
    """Read a Mulan file, or a training and a test file, with the labels that `xml` names.

    Labels keep the order of their columns in the ARFF file, which need not be the order of the XML.
    """
    labels = read_label_names(xml)

    def parts(file: str | PathLike[str]) -> dict[str, object]:
        table = read_arff(file)
        columns = {attribute.name: i for i, attribute in enumerate(table.attributes)}
        missing = [label for label in labels if label not in columns]
        if missing:
            raise data_error(file, f"no attribute is called {missing[0]!r}, expected every label of {Path(xml).name}.")
        return table.parts({columns[label] for label in labels})

    return dataset_of_pair(parts, path, test_path, name)


def read_label_names(xml: str | PathLike[str]) -> list[str]:
    """The `name` of every `label` element; document types and entities are refused, not expanded."""
    try:
        tree = ElementTree.parse(str(xml), forbid_dtd=True)
    except OSError as error:
        raise data_error(xml, f"cannot be opened ({error.strerror}).") from error
    except ParseError as error:
        raise data_error(xml, f"is not well-formed XML ({error.msg}).", error.position[0]) from error
    except (ValueError, LookupError) as error:  # forbidden parts, encodings that do not exist
        kind = type(error).__name__
        raise data_error(xml, f"was refused ({kind}), expected XML without a document type or entities.") from error
    names: list[str] = []
    for element in tree.iter():
        if isinstance(element.tag, str) and element.tag.rpartition("}")[2] == "label":
            label = element.get("name")
            if not label:
                raise data_error(xml, f"label {len(names) + 1} has no name, expected <label name=...>.")
            names.append(label)
    if not names:
        raise data_error(xml, "names no label, expected <label name=...> elements.")
    if len(set(names)) != len(names):
        raise data_error(xml, f"names {len(names)} labels but only {len(set(names))} differ, expected each once.")
    return names
