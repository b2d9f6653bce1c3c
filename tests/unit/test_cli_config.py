"""`culver config`: the reference of settings in the terminal."""

from __future__ import annotations

import json

import pytest

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.config.reference import setting_rows


def test_every_setting_is_listed_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SCOPE", "SETTING", "TYPE", "DEFAULT", "ALLOWED"]
    assert [line.split()[:2] for line in lines[1:]] == [[row.scope, row.name] for row in setting_rows()]


def test_a_setting_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "num.partitions"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert printed.startswith("num.partitions  (broker setting)\n")
    assert "default:  1\n" in printed
    assert "culver serve --set num.partitions=VALUE, or $CULVER_NUM_PARTITIONS" in printed


def test_part_of_a_name_finds_all_that_contain_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "retention", "--topic", "-o", "json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert {"retention.ms", "retention.bytes"} <= {row["name"] for row in found}
    assert {row["scope"] for row in found} == {"topic"}
    assert all("retention" in row["name"] for row in found)


def test_a_name_that_is_no_setting_gets_the_nearest_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "num.partitoins"]) == ExitCode.NOT_FOUND
    assert "did you mean num.partitions" in capsys.readouterr().err
