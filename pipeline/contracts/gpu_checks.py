"""One accelerator as its file states it, and the checks its figures must pass or except by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pipeline.contracts.faults import nearest
from pipeline.contracts.strict import PartialDate, Positive, PositiveInt, Strict, Text

Family = Literal[
    "nv-maxwell", "nv-pascal", "nv-volta", "nv-turing", "nv-ampere", "nv-a100", "nv-ada", "nv-hopper",
    "nv-blackwell", "nv-blackwell-dc", "nv-gb10", "nv-jetson",
    "amd-gcn", "amd-gfx906", "amd-cdna1", "amd-cdna2", "amd-cdna3", "amd-cdna4",
    "amd-rdna1", "amd-rdna2", "amd-rdna3", "amd-rdna4", "amd-strix",
    "intel-arc", "intel-pvc", "intel-gaudi",
    "apple-m1", "apple-m2", "apple-m3", "apple-m4", "apple-m5", "apple-m6",
    "cpu", "huawei-ascend", "google-tpu", "other",
]  # fmt: skip
Category = Literal["consumer", "workstation", "datacenter", "laptop", "apple", "edge", "cpu", "npu"]
VENDOR_OF_FAMILY = {
    "nv": "nvidia", "amd": "amd", "intel": "intel", "apple": "apple", "huawei": "huawei", "google": "google",
}  # fmt: skip
FAMILY_OF_CAPABILITY = {
    "sm_52": "nv-maxwell", "sm_60": "nv-pascal", "sm_61": "nv-pascal", "sm_62": "nv-jetson",
    "sm_70": "nv-volta", "sm_72": "nv-jetson", "sm_75": "nv-turing", "sm_80": "nv-a100",
    "sm_86": "nv-ampere", "sm_87": "nv-jetson", "sm_89": "nv-ada", "sm_90": "nv-hopper",
    "sm_100": "nv-blackwell-dc", "sm_103": "nv-blackwell-dc", "sm_110": "nv-jetson",
    "sm_120": "nv-blackwell", "sm_121": "nv-gb10", "gfx803": "amd-gcn", "gfx900": "amd-gcn",
    "gfx906": "amd-gfx906", "gfx908": "amd-cdna1", "gfx90a": "amd-cdna2", "gfx942": "amd-cdna3",
    "gfx950": "amd-cdna4", "gfx1010": "amd-rdna1", "gfx1030": "amd-rdna2", "gfx1031": "amd-rdna2",
    "gfx1032": "amd-rdna2", "gfx1034": "amd-rdna2", "gfx1100": "amd-rdna3", "gfx1101": "amd-rdna3",
    "gfx1102": "amd-rdna3", "gfx1200": "amd-rdna4", "gfx1201": "amd-rdna4", "gfx1151": "amd-strix",
}  # fmt: skip
_MEMORY_SUFFIX = re.compile(r"-([0-9]+(?:\.[0-9]+)?)gb$")


class Gpu(Strict):
    """One accelerator; of a board with several, one of them. Rates are dense, FP16 and FP8 with FP32 sums."""

    id: Text | None = None
    name: Text
    architecture: Text | None = None
    family: Family
    category: Category
    release_date: PartialDate | None = None
    confidence: Literal["high", "medium", "low"]
    memory_gib: Positive | None = None
    memory_type: Text | None = None
    memory_bus_bits: PositiveInt | None = None
    memory_data_rate_gbit_s: Positive | None = None
    bandwidth_gb_s: Positive | None = None
    unified_memory: bool
    devices_per_board: PositiveInt = 1
    fp16_dense_tflops: Positive | None = None
    fp16_fp16acc_dense_tflops: Positive | None = None
    bf16_dense_tflops: Positive | None = None
    fp8_dense_tflops: Positive | None = None
    int8_dense_tops: Positive | None = None
    fp4_dense_tflops: Positive | None = None
    fp32_tflops: Positive | None = None
    compute_units: PositiveInt | None = None
    boost_clock_mhz: Positive | None = None
    l2_cache_mib: Positive | None = None
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")] | None = None
    link: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")] | None = None
    link_gb_s: Positive | None = None
    pcie_gen: Annotated[int, Field(ge=1, le=7)] | None = None
    pcie_lanes: Annotated[int, Field(ge=1, le=16)] | None = None
    tdp_w: Positive | None = None
    unpublished_reason: Text | None = None
    unverified_fields: list[Text] = Field(default_factory=list)
    note: Text | None = None
    cite: Annotated[dict[str, list[Text]], Field(min_length=1)]
    exceptions: dict[str, Text] = Field(default_factory=dict)


@dataclass(frozen=True)
class Breach:
    """What a check found: the field, its value and what is allowed."""

    field: str
    value: object
    allowed: str


def breaches(gpu: str, vendor: str, record: Gpu) -> dict[str, Breach]:
    """Every check the record does not pass, by the check's name; exceptions are not considered."""
    found = {name: check(gpu, vendor, record) for name, check in CHECKS.items()}
    return {name: breach for name, breach in found.items() if breach is not None}


def _bandwidth_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    value = record.bandwidth_gb_s
    if value is None:
        return None
    is_hbm = (record.memory_type or "").startswith("HBM")
    if value < 5 or (is_hbm and value < 200):
        return Breach("bandwidth_gb_s", value, f"looks like TB/s: write {value * 1000:g}, not {value:g}")
    if value > 30_000:
        hint = f"looks like MB/s: write {value / 1000:g}" if value >= 50_000 else "check the unit"
        return Breach("bandwidth_gb_s", value, f"must be GB/s, between 5 and 30000; {hint}")
    return None


def _memory_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    value = record.memory_gib
    if value is None:
        return None
    if value >= 1e6:
        return Breach("memory_gib", value, f"looks like bytes: write {value / 2**30:g}")
    if value > 2048:
        return Breach("memory_gib", value, f"looks like MiB: write {value / 1024:g}")
    if value < 1:
        return Breach("memory_gib", value, "must be GiB, at least 1")
    decimal = value / 1.073741824
    if not _is_whole(value, 1e-9) and _is_whole(decimal, 1e-3):
        size = round(decimal)
        return Breach("memory_gib", value, f"looks like decimal GB of {size} GiB: write {size}")
    marketed = value * 1.073741824
    if not _is_whole(value, 1e-9) and _is_whole(marketed, 1e-3):
        hint = f"a card sold as {round(marketed)} GB has {round(marketed)} GiB"
        return Breach("memory_gib", value, f"looks like {round(marketed)} GB taken as decimal; {hint}")
    return None


def _id_memory(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    if _memory_unit(gpu, vendor, record):
        return None
    suffix = _MEMORY_SUFFIX.search(gpu)
    if suffix is None and record.memory_gib is not None:
        return Breach("memory_gib", record.memory_gib, f"the file name must end in -{record.memory_gib:g}gb")
    if suffix is not None and record.memory_gib != float(suffix.group(1)):
        return Breach("memory_gib", record.memory_gib, f"must be {suffix.group(1)}, as the file name says")
    return None


def _data_rate_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    value = record.memory_data_rate_gbit_s
    if value is None or 0.5 <= value <= 50:
        return None
    hint = f": looks like MT/s, write {value / 1000:g}" if value > 500 else ""
    return Breach("memory_data_rate_gbit_s", value, f"must be Gbit/s per pin, between 0.5 and 50{hint}")


def _bandwidth_ratio(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    bus, rate = record.memory_bus_bits, record.memory_data_rate_gbit_s
    if record.bandwidth_gb_s is None or bus is None or rate is None:
        return None
    if _bandwidth_unit(gpu, vendor, record) or _data_rate_unit(gpu, vendor, record):
        return None
    arithmetic = bus * rate / 8
    if abs(record.bandwidth_gb_s / arithmetic - 1) <= 0.025:
        return None
    allowed = f"must be within 2.5 % of bus x data rate / 8 = {arithmetic:g}"
    return Breach("bandwidth_gb_s", record.bandwidth_gb_s, allowed)


def _fp8_fp16_ratio(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    fp16 = record.fp16_dense_tflops or record.bf16_dense_tflops
    if record.fp8_dense_tflops is None or fp16 is None:
        return None
    ratio = record.fp8_dense_tflops / fp16
    if any(abs(ratio / usual - 1) <= 0.03 for usual in (1, 2)):
        return None
    hint = "; a sparse figure is twice the dense one" if abs(ratio / 4 - 1) <= 0.03 else ""
    allowed = f"is {ratio:.3g} times fp16: must be 1 or 2{hint}"
    return Breach("fp8_dense_tflops", record.fp8_dense_tflops, allowed)


def _fp4_fp8_ratio(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    if record.fp4_dense_tflops is None or record.fp8_dense_tflops is None:
        return None
    ratio = record.fp4_dense_tflops / record.fp8_dense_tflops
    if 0.995 <= ratio <= 4.02:
        return None
    return Breach("fp4_dense_tflops", record.fp4_dense_tflops, f"is {ratio:.3g} times fp8: must be 1 to 4")


def _fp16_accumulation(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    short, full = record.fp16_fp16acc_dense_tflops, record.fp16_dense_tflops
    if short is None or full is None or short >= full * 0.995:
        return None
    allowed = f"must be at least the rate with FP32 accumulation, {full:g}"
    return Breach("fp16_fp16acc_dense_tflops", short, allowed)


def _int8_fp16_ratio(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    fp16 = max(record.fp16_dense_tflops or 0, record.bf16_dense_tflops or 0)
    # Pascal runs FP16 at 1/64 of FP32 and INT8 (dp4a) at 4 times FP32.
    if record.int8_dense_tops is None or not fp16 or record.family == "nv-pascal":
        return None
    ratio = record.int8_dense_tops / fp16
    if ratio <= 4.04:
        return None
    return Breach("int8_dense_tops", record.int8_dense_tops, f"is {ratio:.3g} times fp16: must be at most 4")


def _rate_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    for field in RATES:
        value = getattr(record, field)
        if value is not None and value > 20_000:
            hint = f"looks like GFLOPS, write {value / 1000:g}"
            return Breach(field, value, f"must be TFLOPS, at most 20000: {hint}")
    return None


def _clock_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    value = record.boost_clock_mhz
    if value is None or 200 <= value <= 6000:
        return None
    hint = f": looks like GHz, write {value * 1000:g}" if value < 10 else ""
    return Breach("boost_clock_mhz", value, f"must be MHz, between 200 and 6000{hint}")


def _power_unit(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    value = record.tdp_w
    if value is None or 3 <= value <= 3000:
        return None
    hint = f": looks like kW, write {value * 1000:g}" if value < 3 else ""
    return Breach("tdp_w", value, f"must be W, between 3 and 3000{hint}")


def _vendor_family(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    owner = VENDOR_OF_FAMILY.get(record.family.partition("-")[0])
    if owner is None or owner == vendor:
        return None
    return Breach("family", record.family, f"belongs to vendor '{owner}', the file is in '{vendor}'")


def _capability_family(gpu: str, vendor: str, record: Gpu) -> Breach | None:
    capability = record.compute_capability
    if capability is None or not capability.startswith(("sm_", "gfx")):
        return None
    family = FAMILY_OF_CAPABILITY.get(capability)
    if family is None:
        allowed = f"is not known{nearest(capability, FAMILY_OF_CAPABILITY)}"
        return Breach("compute_capability", capability, allowed)
    if family != record.family:
        allowed = f"belongs to family '{family}', not '{record.family}'"
        return Breach("compute_capability", capability, allowed)
    return None


RATES = [name for name in Gpu.model_fields if name.endswith(("_tflops", "_tops"))]
CHECKS: dict[str, Callable[[str, str, Gpu], Breach | None]] = {
    "vendor_family": _vendor_family,
    "capability_family": _capability_family,
    "memory_unit": _memory_unit,
    "id_memory": _id_memory,
    "bandwidth_unit": _bandwidth_unit,
    "data_rate_unit": _data_rate_unit,
    "bandwidth_ratio": _bandwidth_ratio,
    "rate_unit": _rate_unit,
    "fp8_fp16_ratio": _fp8_fp16_ratio,
    "fp4_fp8_ratio": _fp4_fp8_ratio,
    "fp16_accumulation": _fp16_accumulation,
    "int8_fp16_ratio": _int8_fp16_ratio,
    "clock_unit": _clock_unit,
    "power_unit": _power_unit,
}

# Those that look at one number by itself: they can be told of a record that has other faults.
UNIT_CHECKS = ("memory_unit", "bandwidth_unit", "data_rate_unit", "rate_unit", "clock_unit", "power_unit")


def _is_whole(value: float, tolerance: float) -> bool:
    return round(value) > 0 and abs(value / round(value) - 1) <= tolerance
