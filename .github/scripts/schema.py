"""Validate against the part of JSON Schema that `report.schema.json` uses.

The job that may comment installs no package, so jsonschema is not available to it.
"""

import re
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}


def problem(document: Any, schema: dict[str, Any], root: dict[str, Any] | None = None, where: str = "report") -> str:
    """Return the first thing that is wrong with `document`, or "" if it is valid.

    Raises NotImplementedError for an unknown keyword: a schema must not promise what nobody checks.
    """
    root = schema if root is None else root
    for keyword, value in schema.items():
        if keyword == "$ref":
            found = problem(document, root["$defs"][value.removeprefix("#/$defs/")], root, where)
        elif keyword in ("properties", "additionalProperties", "required", "items"):
            found = _inside(keyword, document, schema, root, where)
        elif keyword not in ANNOTATIONS:
            found = "" if _fits(keyword, document, value) else f"{where} breaks its {keyword}"
        else:
            continue
        if found:
            return found
    return ""


def _inside(keyword: str, document: Any, schema: dict[str, Any], root: dict[str, Any], where: str) -> str:
    value = schema[keyword]
    if keyword == "items" and isinstance(document, list):
        found = (problem(item, value, root, f"{where}[{index}]") for index, item in enumerate(document))
        return next(filter(None, found), "")
    if keyword == "required" and isinstance(document, dict):
        return next((f"{where} has no {name}" for name in value if name not in document), "")
    if keyword == "properties" and isinstance(document, dict):
        named = ((name, inner) for name, inner in value.items() if name in document)
        return next(
            filter(None, (problem(document[name], inner, root, f"{where}.{name}") for name, inner in named)), ""
        )
    if keyword == "additionalProperties" and isinstance(document, dict):
        others = ((name, inner) for name, inner in document.items() if name not in schema.get("properties", {}))
        return next(filter(None, (problem(inner, value, root, f"{where}.{name}") for name, inner in others)), "")
    return ""


def _fits(keyword: str, document: Any, value: Any) -> bool:
    if keyword == "type":
        names = [value] if isinstance(value, str) else value
        return any(_is(document, name) for name in names)
    if keyword == "enum":
        return document in value
    if keyword == "pattern":
        whole = re.sub(r"\$$", r"\\Z", value)  # Python's `$` also matches before a final line feed
        return not isinstance(document, str) or re.search(whole, document, re.ASCII) is not None
    if keyword == "maxLength":
        return not isinstance(document, str) or len(document) <= value
    if keyword == "minItems":
        return not isinstance(document, list) or len(document) >= value
    if keyword == "maxItems":
        return not isinstance(document, list) or len(document) <= value
    if keyword == "minimum":
        return not _is(document, "number") or document >= value
    if keyword == "maximum":
        return not _is(document, "number") or document <= value
    raise NotImplementedError(f"{keyword} is not among the keywords read here")


def _is(document: Any, name: str) -> bool:
    if isinstance(document, bool):
        return name == "boolean"
    return isinstance(document, TYPES[name])
