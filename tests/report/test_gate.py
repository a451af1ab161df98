"""The verdicts of a gate, for a terminal and for CI servers."""

from __future__ import annotations

from xml.etree import ElementTree

from ablate.gate.check import CheckVerdict
from ablate.report.gate import gate_text, junit


def verdict(failure: str | None, check: str = "bleu", *remarks: str) -> CheckVerdict:
    return CheckVerdict(check, "exact", "baseline: x", "41.0", "40 to 42", "39.0", failure, remarks)


def test_a_terminal_gets_a_table_of_its_width_and_each_remark_once() -> None:
    message = gate_text([verdict("39 is 1 too low")], ["a remark"], 60, is_coloured=False)
    assert all(len(line) <= 60 for line in message.splitlines())
    assert "a remark" in message
    assert "FAILED bleu: 39 is 1 too low" in message
    checks = [verdict(None, "a", "shared"), verdict(None, "b", "own"), verdict(None, "c", "shared")]
    lines = gate_text(checks, (), None, is_coloured=False).splitlines()
    assert lines[-3:] == ["a, c: shared", "b: own", "the gate passed: 3 checks"]


def test_ci_servers_get_well_formed_xml_whatever_a_run_says() -> None:
    odd = 'seed 2 failed: <boom> & "quotes" \x00\x1b[31m \ud800'
    root = ElementTree.fromstring(
        junit("a <b>", [verdict(odd), verdict(None, "ok", "beside")], ["on another machine"])
    )
    (suite,) = root
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("a <b>", "2", "1")
    failed, held = suite.findall("testcase")
    failure = failed.find("failure")
    assert failure is not None
    message = failure.get("message")
    assert message is not None
    assert message.startswith('seed 2 failed: <boom> & "quotes" ')
    assert held.find("failure") is None
    assert "beside" in (held.findtext("system-out") or "")
    assert suite.findtext("system-out") == "on another machine"
