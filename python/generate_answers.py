"""Writes `model_analyze/answers.py`: the JSON Schemas of the command's answers as typed dictionaries.

    python python/generate_answers.py           writes it again
    python python/generate_answers.py --check   fails where it is not what the schemas say
"""

import json
import pathlib
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "model_analyze" / "answers.py"
HEAD = '''"""The answers of the command as Python sees them. Made from schema/json by python/generate_answers.py."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Union
'''
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def type_of(schema):
    """Returns the annotation of one schema."""
    if schema is True or not schema:
        return "Any"
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return union([type_of(part) for part in schema[key]])
    kind = schema.get("type")
    if isinstance(kind, list):
        return union([type_of({**schema, "type": one}) for one in kind])
    if kind == "array":
        parts = [type_of(part) for part in schema.get("prefixItems", ())]
        return f"list[{union(parts) if parts else type_of(schema.get('items'))}]"
    if kind == "object":
        return f"dict[str, {type_of(schema.get('additionalProperties'))}]" if not schema.get("properties") else "dict[str, Any]"
    return PLAIN.get(kind, "Any")


def union(parts):
    parts = list(dict.fromkeys(parts))
    return "Any" if "Any" in parts else parts[0] if len(parts) == 1 else f"Union[{', '.join(parts)}]"


def definition(name, schema):
    """Returns the text of one class, or of a name for another type."""
    properties = schema.get("properties")
    if not properties:
        return f"{name} = {quoted(type_of(schema))}\n"
    required = [key for key in properties if key in schema.get("required", ())]
    optional = [key for key in properties if key not in required]
    about = f'    """{one_line(schema.get("description", name))}"""\n'
    if not optional:
        return f"class {name}(TypedDict):\n{about}{fields(properties, required)}"
    if not required:
        return f"class {name}(TypedDict, total=False):\n{about}{fields(properties, optional)}"
    first = f"class _{name}(TypedDict):\n{fields(properties, required).lstrip(chr(10))}\n\n"
    return f"{first}class {name}(_{name}, total=False):\n{about}{fields(properties, optional)}"


def quoted(annotation):
    """Returns the right-hand side of a name for a type, whose parts may be defined further down."""
    return annotation if annotation in PLAIN.values() or annotation.startswith("Union[Literal") else f'"{annotation}"'


def fields(properties, names):
    text = ""
    for name in names:
        about = one_line(properties[name].get("description", ""))
        lines = textwrap.wrap(about, 114)
        text += "\n" + "".join(f"    # {line}\n" for line in lines) + f"    {name}: {type_of(properties[name])}\n"
    return text


def one_line(text):
    return " ".join(text.split())


def module():
    known = {}
    for path in sorted((HERE.parent / "schema" / "json").glob("answer-*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        for name, found in [*schema.get("$defs", {}).items(), (schema["title"], schema)]:
            shape = {key: found[key] for key in found if key not in ("$schema", "$id", "$defs", "title")}
            if known.setdefault(name, shape) != shape:
                raise SystemExit(f"{path.name}: {name} is two things")
    return HEAD + "".join(f"\n\n{definition(name, known[name])}" for name in sorted(known))


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        if TARGET.read_text(encoding="utf-8") != module():
            raise SystemExit("python/model_analyze/answers.py is not what schema/json says: run python/generate_answers.py")
    else:
        TARGET.write_text(module(), encoding="utf-8")
