"""The guide in docs/ runs as it stands."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from culver.testing import Broker

GUIDE = Path(__file__).parents[2] / "docs" / "spark_guide.py"


@pytest.mark.usefixtures("spark")
def test_the_guide_runs(
    culver_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(GUIDE), culver_broker.bootstrap_servers])
    names = runpy.run_path(str(GUIDE))
    shutil.rmtree(names["DIRECTORY"])
    assert isinstance(names["spark"], SparkSession)
    assert names["rows"] == 1000
    assert "customer-9" in capsys.readouterr().out
