"""The JSON Schema that editors read is the one that manifests are checked against."""

from __future__ import annotations

import json

from manifests.schema import SHIPPED, json_schema


def test_the_shipped_json_schema_is_that_of_the_models() -> None:
    shipped = json.loads((SHIPPED / "manifest.schema.json").read_text())
    assert shipped == json_schema(), "write json_schema() to manifests/manifest.schema.json again"
