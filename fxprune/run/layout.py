"""The names of the parts of a run folder, and the schema that each part declares."""

from __future__ import annotations

FACTS, RUN_SCHEMA, RUN_VERSION = "run.json", "fxprune.run/", 1
NETWORK, NETWORK_SCHEMA = "network.json", "fxprune.network/1"
CHECKPOINT, CHECKPOINT_SCHEMA = "checkpoint.pt", "fxprune.checkpoint/1"
REPORT, REPORT_SCHEMA = "report.json", "fxprune.prune/1"
LOG, LOG_TABLE, EVENTS = "log.jsonl", "log.csv", "tensorboard"
HARDENED, SLIM = "hardened", "slim"

EARLY = (FACTS, NETWORK, LOG_TABLE, LOG, EVENTS)  # what can exist before the first checkpoint
KEPT = (*EARLY, HARDENED, SLIM, REPORT, CHECKPOINT)
