"""The page of reconciliation runs as it stands, from first to last command, on rows that were tampered with."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from cli.test_work import Table, postroad
from docs.test_examples import save_files

PAGE = "docs/reconcile.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.splitlines()]


def test_the_commands_of_the_page_find_and_repair(postgres, database, runtime_url, tmp_path, monkeypatch):
    table = Table(postgres, database, runtime_url)
    for name in ("invoice", "ledger_entry"):
        table.execute(f'CREATE TABLE {name} (number text COLLATE "C" PRIMARY KEY, cents int)')
        table.execute(f"GRANT ALL ON {name} TO pr_runtime")
        table.execute(f"INSERT INTO {name} VALUES ('A-1', 1999), ('A-2', 500), ('A-3', 7)")
    table.execute("DELETE FROM ledger_entry WHERE number = 'A-2'")
    table.execute("UPDATE ledger_entry SET cents = 0 WHERE number = 'A-3'")
    save_files(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = [postroad(*shlex.split(line)[1:], **table.given) for line in COMMANDS]
    sys.modules.pop("ledger", None)
    assert [one.returncode for one in done] == [0, 1, 0, 0, 0, 0, 0], [one.stderr for one in done]
    listed, first, drift, plan, repaired, last, audit = (one.stdout for one in done)
    assert "ledger.invoices" in listed
    assert "3 keys compared, 1 missing, 0 extra, 1 mismatched" in first
    assert "expected 500, found None" in drift
    assert "expected 7, found 0" in drift
    assert plan.startswith("repair: 2 keys")
    assert "repaired 2 of 2 keys" in repaired
    assert last == "ledger.invoices: 3 keys compared, no drift\n"
    assert "rows were changed by hand" in audit


def test_the_table_of_the_built_in_ones_is_complete():
    from postroad.reconcile.built_in import built_in

    names = {one.name for one in built_in((), owned=(), strays=list)}
    assert names | {"CONSUMER.handled"} == set(re.findall(r"^\| `([\w.]+)` \|", TEXT, re.MULTILINE))
