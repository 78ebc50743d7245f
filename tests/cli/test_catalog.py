"""``postroad catalog``: export, import, check and golden, as a deploy and a CI run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from postroad.cli.commands import execute
from postroad.runtime.exits import Exit
from runtime.processes import environment, import_app, postroad

FIRST = '''
from pydantic import BaseModel, Field

from postroad import App, Producer

ports = Producer("ports")


@ports.event("ship.moored", version=1)
class ShipMoored(BaseModel):
    """A ship lies at its berth."""

    ship: str = Field(description="Its name.")
    berth: int | None = Field(default=None, description="Where.")


app = App("ports", publishes=[ports])
'''
WITHOUT = FIRST.replace('    berth: int | None = Field(default=None, description="Where.")\n', "")
REUSED = FIRST.replace("berth: int | None", "berth: str | None")
NEEDED = FIRST.replace("berth: int | None = Field(default=None, ", "berth: int | None = Field(")
LIFTED = NEEDED.replace("version=1)", "version=2, upcasts={1: lambda data: {'berth': 0, **data}})")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run a command in a folder in which ``harbour.py`` has this text."""

    def here(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "harbour.py").write_text(text)
        return postroad("catalog", *arguments, PYTHONPATH=str(tmp_path), PYTHONDONTWRITEBYTECODE="1")

    return here


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (done.returncode, done.stdout) == (Exit.USAGE, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_a_catalog_goes_from_release_to_release(run: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "catalog.json")
    assert run(FIRST, "export", "harbour:app", "--json", file).stdout == f"{file}: 1 event, 0 subscriptions\n"
    same = run(FIRST, "check", file, "harbour:app")
    assert (same.returncode, same.stdout) == (0, "compatible\n")
    broken = run(NEEDED, "check", file, "harbour:app", "--json")
    assert broken.returncode == Exit.FINDINGS
    told = json.loads(broken.stdout)
    assert told["compatible"] is False
    assert [(one["rule"], one["path"], one["severity"]) for one in told["findings"]] == [
        ("optional-to-required", "berth", "break")
    ]
    text = run(NEEDED, "check", file, "harbour:app")
    assert text.stdout.splitlines()[-1] == "1 break"
    assert (
        "kept 90 days, would be refused by consumers on the new class; keep its default, or publish v2" in text.stdout
    )
    assert run(LIFTED, "check", file, "harbour:app").returncode == 0
    # Without a name, over the same file: what went is remembered, also by a printed export that names the one before.
    assert run(WITHOUT, "export", "harbour:app", "--json", file).returncode == 0
    assert json.loads(Path(file).read_text())["events"][0]["removed"] == [{"path": "berth", "word": "integer or null"}]
    printed = run(WITHOUT, "export", "harbour:app", "--since", file)
    assert json.loads(printed.stdout) == json.loads(Path(file).read_text())
    reused = run(REUSED, "check", file, "harbour:app", "--json")
    assert [one["rule"] for one in json.loads(reused.stdout)["findings"]] == ["name-reused"]
    # Two files, as a CI that has both.
    later = tmp_path / "later.json"
    later.write_text(run(LIFTED, "export", "harbour:app", "--since", file).stdout)
    assert run(LIFTED, "check", file, str(later)).returncode == 0


def test_what_is_imported_reads_in_another_process(run: Any, tmp_path: Path) -> None:
    file, out = str(tmp_path / "catalog.json"), str(tmp_path / "ports_events.py")
    run(FIRST, "export", "harbour:app", "--json", file)
    assert run(FIRST, "import", file, "--out", out).stdout == f"{out}: 1 subscription\n"
    assert run(FIRST, "import", file, "--out", out).returncode == 0  # It made that file.
    assert run(FIRST, "import", file, "--type", "ports.ship.moored").stdout == Path(out).read_text()
    code = "import ports_events as p; print(p.SHIP_MOORED.decode({'ship': 'Ada', 'new': 1}))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment(PYTHONPATH=str(tmp_path)), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "ship='Ada' berth=None\n"
    one_line(run(FIRST, "import", file, "--out", str(tmp_path / "harbour.py")), "was not made by this command", "PR107")
    one_line(run(FIRST, "import", file, "--type", "ports.ship.sunk"), "holds no ports.ship.sunk", "PR107")


def test_golden_envelopes_are_read_by_todays_upcasts(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "golden"
    folder.mkdir()

    def keep(name: str, version: int, data: dict[str, Any]) -> None:
        envelope = {
            "specversion": "1.0", "id": "1", "source": "urn:postroad:ports", "type": "ports.ship.moored",
            "schemaversion": version, "time": "2026-01-01T00:00:00Z", "data": data,
        }  # fmt: skip
        (folder / name).write_text(json.dumps(envelope))

    keep("moored.v1.json", 1, {"ship": "Ada"})
    lacking = run(LIFTED, "golden", "harbour:app", str(folder), "--json")
    assert lacking.returncode == Exit.FINDINGS
    (problem,) = json.loads(lacking.stdout)["problems"]
    assert (problem["version"], problem["problem"]) == (2, "has no golden envelope")
    keep("moored.v2.json", 2, {"ship": "Ada", "berth": 3})
    well = run(LIFTED, "golden", "harbour:app", str(folder))
    assert (well.returncode, well.stdout) == (0, "2 readings well, 0 problems\n")
    broken = run(LIFTED.replace("'berth': 0, ", ""), "golden", "harbour:app", str(folder))
    assert broken.returncode == Exit.FINDINGS
    assert "moored.v1.json: ports.ship.moored v1 by harbour.ShipMoored" in broken.stdout
    assert "(berth: missing)" in broken.stdout
    (folder / "other.json").write_text('{"hush": "hush"')
    other = run(LIFTED, "golden", "harbour:app", str(folder))
    assert "other.json" in other.stdout
    assert "hush" not in other.stdout.replace("other.json", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "absent.json", "orders:app"), ["'absent.json' cannot be read", "PR107"]),
        (("check", "orders:app", "orders:app"), ["'orders:app' cannot be read", "PR107"]),
        (("check", "{here}/text", "orders:app"), ["is not JSON, line 2", "catalog export", "PR107"]),
        (("import", "{here}/bytes"), ["is not UTF-8", "PR107"]),
        (("import", "{here}"), ["cannot be read", "PR107"]),
        (("export", "orders:nothing"), ["nothing, not an App", "PR107"]),
        (("export", "orders:app", "--json", "{here}/no/where.json"), ["cannot be written", "PR107"]),
        (("export", "orders:app", "--since", "{here}/bytes"), ["is not UTF-8", "PR107"]),
        (("golden", "orders:app", "{here}"), ["holds no *.json", "PR107"]),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: list[str]
) -> None:
    import_app("orders")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "text").write_text("\nno JSON")
    code = execute(["catalog", *(each.format(here=tmp_path) for each in arguments)])
    said = capsys.readouterr()
    assert (code, said.out) == (Exit.USAGE, "")
    assert len(said.err.splitlines()) == 1
    for word in words:
        assert word in said.err
