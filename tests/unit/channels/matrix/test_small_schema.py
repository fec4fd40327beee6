"""The small JSON Schema says what the library says, on every schema that nio has."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.matrix.client import small_schema

jsonschema = pytest.importorskip("jsonschema")

_SOURCE = Path(importlib.util.find_spec("nio").origin).with_name("schemas.py")
_MEANINGLESS = {"default", "const"}
"""``default`` is nio's own affair (it fills them in), ``const`` is not in draft 4."""
# Typing errors in nio's schemas: draft 4 ignores what it does not know.
_MISTAKES = {"h", "w", "mimetype", "size", "type:", "(signed_curve25519|curve25519):.+"}


def schemas_by(library):
    """nio's module of schemas, made on one or the other library."""
    before = {name: sys.modules.get(name) for name in ("jsonschema",)}
    sys.modules["jsonschema"] = library
    try:
        spec = importlib.util.spec_from_file_location(f"schemas_{id(library)}", _SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        for name, value in before.items():
            sys.modules[name] = value
    return module


SMALL, LARGE = schemas_by(small_schema), schemas_by(jsonschema)
NAMES = sorted(name for name, value in vars(LARGE.Schemas).items() if isinstance(value, dict))


def keywords(schema):
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        yield key
        if key in ("properties", "patternProperties"):
            for one in value.values():
                yield from keywords(one)
        elif key in ("items", "not", "additionalProperties"):
            yield from keywords(value)


def test_nio_uses_no_keyword_that_is_missing():
    """A newer nio that needs more is noticed here."""
    used = {key for name in NAMES for key in keywords(getattr(LARGE.Schemas, name))}

    assert used - small_schema.KEYWORDS <= _MEANINGLESS | _MISTAKES


SCALARS = st.sampled_from([None, True, 0, -1, 1.5, "", "@a:b", [], {}, [1], {"a": {}}])


def fitting(schema):
    """Values that mostly fit a schema; nio has a malformed one, too."""
    if not isinstance(schema, dict):
        return SCALARS
    names = schema.get("type", "object")
    chosen = names if isinstance(names, list) else [names]
    return st.one_of(*(_of_type(name, schema) for name in chosen))


def _of_type(name, schema):
    match name:
        case "object":
            parts = {key: fitting(value) for key, value in schema.get("properties", {}).items()}
            return st.fixed_dictionaries({}, optional=parts) | st.fixed_dictionaries(parts)
        case "array":
            return st.lists(fitting(schema.get("items", {"type": "string"})), max_size=2)
        case "string":
            return st.sampled_from([*schema.get("enum", ()), "@a:b", "!a:b", "http://x", "m.text", "", "abc"])
        case "integer" | "number":
            return st.sampled_from([0, 1, -1, 10**12, True, 1.5])
        case "boolean":
            return st.booleans()
        case _:
            return st.none()


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_both_say_the_same(data):
    """The same verdict, and the same defaults filled in, for values that fit and values that do not."""
    name = data.draw(st.sampled_from(NAMES))
    value = data.draw(fitting(getattr(LARGE.Schemas, name)) | SCALARS)
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        value[data.draw(st.sampled_from(sorted(value)))] = data.draw(SCALARS)
    verdicts = []
    for module, library in ((SMALL, small_schema), (LARGE, jsonschema)):
        given_value = copy.deepcopy(value)
        try:
            module.validate_json(given_value, getattr(module.Schemas, name))
            verdicts.append(("fits", given_value))
        except library.ValidationError:
            verdicts.append(("does not", None))
        except (AttributeError, TypeError) as error:
            verdicts.append((type(error).__name__, None))

    assert verdicts[0] == verdicts[1]


def test_nio_is_loaded_without_the_library():
    """In a clean process nio comes without ``jsonschema``, and whoever wants that afterwards gets the real one."""
    code = (
        "import json, sys\n"
        "from channels.matrix.client.nio_import import load_nio\n"
        "load_nio()\n"
        "import channels.matrix.encryption.olm_machine\n"
        "loaded = [name for name in sys.modules if name.startswith(('jsonschema', 'rpds'))]\n"
        "import jsonschema\n"
        "print(json.dumps([loaded, hasattr(jsonschema, 'Draft7Validator')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[4]
    )

    assert json.loads(done.stdout) == [[], True]
