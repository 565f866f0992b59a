"""Finds files in `sources/` that nothing reads: a misspelt name would else leave facts out in silence."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from pipeline.contracts.faults import FaultLog, nearest

READ = (
    "grid.toml", "labels.toml",
    "aliases/frameworks.csv", "aliases/gpus.csv", "aliases/kv_dtypes.csv", "aliases/models.csv",
    "aliases/quants.csv",
    "anchors/corrections.csv", "anchors/flags.csv", "anchors/publishers.csv", "anchors/readings.csv",
    "anchors/decode/*.csv", "anchors/serving/*.csv",
    "capacity_rules/rules.csv",
    "citations/*.toml", "claims/*.toml", "coefficients/*.csv", "file_sizes/*.csv", "frameworks/*.toml",
    "gpus/*.toml", "kv_dtypes/*.csv", "latent_modes/*.csv", "launch_templates/*.csv", "memory_flags/*.csv",
    "memory_logs/*.csv", "memory_plans/*.csv", "memory_reports/*.csv", "models/*.json",
    "quants/*.toml", "quants/checkpoint_layouts.csv", "quants/checkpoint_recipes.csv",
    "quants/gguf_fallbacks.csv", "quants/gguf_mix_rules.csv", "quants/gguf_publishers.csv",
    "quants/gguf_tokenizers.csv", "quants/unsloth_dynamic.csv",
    "support/architectures.csv", "support/formats.csv", "support/hardware.csv", "support/kv_dtypes.csv",
    "support/parallelism.csv",
    "usable_memory/*.csv",
)  # fmt: skip


def check_every_file_is_read(root: Path, log: FaultLog) -> None:
    """A fault for each file that no reader takes, with what its folder holds; hidden files are left alone.

    A link that leads nowhere is not read either. `*` in READ stands for folders, too.
    """
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir() or path.name.startswith("."):
            continue
        if not path.exists():
            log.add(path, "path", name, "is a link that leads nowhere")
        elif not any(fnmatchcase(name, pattern) for pattern in READ):
            log.add(path, "path", name, f"nothing reads this file{_advice(name)}")


def _advice(name: str) -> str:
    folder = name.split("/")[0]
    here = [pattern for pattern in READ if pattern.startswith(f"{folder}/")]
    return nearest(name, here or READ) or (f"; {folder}/ holds {', '.join(here)}" if here else "")
