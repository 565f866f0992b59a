import shutil
from pathlib import Path

import polars as pl
import pytest

from pipeline.contracts.citing import CitationUse
from pipeline.contracts.faults import FaultLog
from pipeline.contracts.gpus import read_gpus
from warehouse.dictionary import violations

SOURCES = Path(__file__).parents[2] / "sources"
GOOD = {
    "name": '"NVIDIA GeForce RTX 4090"',
    "family": '"nv-ada"',
    "category": '"consumer"',
    "confidence": '"high"',
    "memory_gib": "24",
    "memory_type": '"GDDR6X"',
    "memory_bus_bits": "384",
    "memory_data_rate_gbit_s": "21",
    "bandwidth_gb_s": "1008",
    "unified_memory": "false",
    "fp16_dense_tflops": "165.2",
    "fp16_fp16acc_dense_tflops": "330.3",
    "fp8_dense_tflops": "330.3",
    "int8_dense_tops": "660.6",
    "boost_clock_mhz": "2520",
    "compute_capability": '"sm_89"',
    "tdp_w": "450",
}
NUMBERS = [name for name, value in GOOD.items() if value[0].isdigit()]
FILE = "gpus/nvidia/rtx-4090-24gb.toml"
RULES = Path(__file__).parents[2] / "sources" / "capacity_rules"


def write(root: Path, file: str = FILE, tail: str = "", **changes: str | None) -> None:
    fields = {name: value for name, value in (GOOD | changes).items() if value is not None}
    cited = [name for name in fields if name in NUMBERS or (name in changes and fields[name][0].isdigit())]
    lines = [f"{name} = {value}" for name, value in fields.items()]
    lines += ["[cite]", f'"techpowerup/rtx-4090" = {cited!r}'.replace("'", '"'), tail]
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text("\n".join(lines))
    shutil.copytree(RULES, root / "capacity_rules", dirs_exist_ok=True)


def read(root: Path) -> tuple[dict[str, pl.DataFrame], list[str]]:
    log = FaultLog(root)
    tables = read_gpus(root, log, CitationUse())
    return tables, [str(fault) for fault in log]


def test_a_good_record_becomes_a_row(tmp_path: Path) -> None:
    write(tmp_path)
    tables, faults = read(tmp_path)
    assert faults == []
    row = tables["gpus"].row(0, named=True)
    assert (row["gpu"], row["vendor"], row["n_gpus_max"], row["published"]) == (
        "rtx-4090-24gb",
        "nvidia",
        4,
        True,
    )
    assert row["bandwidth_arithmetic_gb_s"] == 1008
    assert row["usable_linux_gib"] == pytest.approx(24 * 0.9995 - 0.45)
    assert row["citation"] == "techpowerup/rtx-4090"
    assert violations(tables["gpus"], "gpus") == []


def test_no_files_give_empty_tables_of_the_right_type(tmp_path: Path) -> None:
    tables, faults = read(tmp_path)
    assert faults == ["capacity_rules/rules.csv: file is missing"]
    assert violations(tables["gpus"], "gpus") == []
    assert violations(tables["usable_memory"], "usable_memory") == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"bandwidth_gb_s": "1.008", "memory_bus_bits": None, "memory_data_rate_gbit_s": None},
         "bandwidth_gb_s = 1.008: looks like TB/s: write 1008, not 1.008 (check bandwidth_unit)"),
        ({"memory_type": '"HBM3"', "bandwidth_gb_s": "3.35", "memory_bus_bits": None},
         "bandwidth_gb_s = 3.35: looks like TB/s: write 3350, not 3.35 (check bandwidth_unit)"),
        ({"bandwidth_gb_s": "1008000", "memory_bus_bits": None, "memory_data_rate_gbit_s": None},
         "bandwidth_gb_s = 1008000.0: must be GB/s, between 5 and 30000; looks like MB/s: write 1008 "
         "(check bandwidth_unit)"),
        ({"bandwidth_gb_s": "936"},
         "bandwidth_gb_s = 936.0: must be within 2.5 % of bus x data rate / 8 = 1008 "
         "(check bandwidth_ratio)"),
        ({"memory_data_rate_gbit_s": "21000", "memory_bus_bits": None},
         "memory_data_rate_gbit_s = 21000.0: must be Gbit/s per pin, between 0.5 and 50: "
         "looks like MT/s, write 21 (check data_rate_unit)"),
        ({"fp8_dense_tflops": "660.6"},
         "fp8_dense_tflops = 660.6: is 4 times fp16: must be 1 or 2; a sparse figure is twice the dense one "
         "(check fp8_fp16_ratio)"),
        ({"fp4_dense_tflops": "2000"},
         "fp4_dense_tflops = 2000.0: is 6.06 times fp8: must be 1 to 4 (check fp4_fp8_ratio)"),
        ({"fp16_fp16acc_dense_tflops": "82.6"},
         "fp16_fp16acc_dense_tflops = 82.6: must be at least the rate with FP32 accumulation, 165.2 "
         "(check fp16_accumulation)"),
        ({"int8_dense_tops": "1321.2"},
         "int8_dense_tops = 1321.2: is 8 times fp16: must be at most 4 (check int8_fp16_ratio)"),
        ({"boost_clock_mhz": "2.52"},
         "boost_clock_mhz = 2.52: must be MHz, between 200 and 6000: looks like GHz, write 2520 "
         "(check clock_unit)"),
        ({"fp32_tflops": "82580"},
         "fp32_tflops = 82580.0: must be TFLOPS, at most 20000: looks like GFLOPS, write 82.58 "
         "(check rate_unit)"),
        ({"tdp_w": "0.45"},
         "tdp_w = 0.45: must be W, between 3 and 3000: looks like kW, write 450 (check power_unit)"),
        ({"tdp_w": "-450"}, "tdp_w = -450: must be more than 0"),
        ({"tdp_w": "0"}, "tdp_w = 0: must be more than 0"),
        ({"tdp_w": "inf"}, "tdp_w = inf: must be a finite number"),
        ({"tdp_w": "nan"}, "tdp_w = nan: must be a finite number"),
        ({"tdp_w": '"450"'}, "tdp_w = '450': must be a number, without quotes"),
        ({"tpd_w": "450"}, "tpd_w = 450: unknown field"),
        ({"name": None}, "name: required field is missing"),
        ({"family": '"nv-adaa"'}, "nearest: nv-ada"),
        ({"family": '"amd-rdna3"', "compute_capability": '"gfx1100"'},
         "family = 'amd-rdna3': belongs to vendor 'amd', the file is in 'nvidia' (check vendor_family)"),
        ({"compute_capability": '"sm_86"'},
         "compute_capability = 'sm_86': belongs to family 'nv-ampere', not 'nv-ada' "
         "(check capability_family)"),
        ({"compute_capability": '"sm_891"'}, "compute_capability = 'sm_891': is not known; nearest: sm_89"),
        ({"confidence": '"low"'},
         "unpublished_reason: must be given: its confidence is low, so it is not published"),
        ({"bandwidth_gb_s": None},
         "unpublished_reason: must be given: bandwidth_gb_s is unknown, so it is not published"),
        ({"link_gb_s": "900"}, "link_gb_s = 900.0: has no link: name it in link, or leave this out"),
        ({"id": '"rtx-4090"'},
         "id = 'rtx-4090': must be 'rtx-4090-24gb', the id its path gives, or be left out"),
        ({"unverified_fields": '["tpd_w"]'}, "unverified_fields = 'tpd_w': unknown field; nearest: tdp_w"),
        ({"unverified_fields": '["pcie_gen"]'},
         "unverified_fields = 'pcie_gen': names a field that is not set"),
    ],
)  # fmt: skip
def test_a_wrong_figure_is_told_with_file_field_value_and_what_is_allowed(
    tmp_path: Path, changes: dict[str, str | None], fault: str
) -> None:
    write(tmp_path, **changes)
    _, faults = read(tmp_path)
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"{FILE}: ")
    assert fault in faults[0]


@pytest.mark.parametrize(
    ("memory_gib", "fault"),
    [
        ("25.77", "looks like decimal GB of 24 GiB: write 24"),
        ("22.35", "looks like 24 GB taken as decimal; a card sold as 24 GB has 24 GiB"),
        ("24576", "looks like MiB: write 24"),
        ("25769803776", "looks like bytes: write 24"),
        ("0.5", "must be GiB, at least 1"),
    ],
)
def test_memory_in_another_unit_is_recognised(tmp_path: Path, memory_gib: str, fault: str) -> None:
    write(tmp_path, memory_gib=memory_gib)
    _, faults = read(tmp_path)
    assert any(f"{fault} (check memory_unit)" in one for one in faults), faults


def test_the_file_name_states_the_memory(tmp_path: Path) -> None:
    write(tmp_path, memory_gib="16")
    write(tmp_path, "gpus/nvidia/rtx-4090.toml")
    _, faults = read(tmp_path)
    assert faults == [
        f"{FILE}: memory_gib = 16.0: must be 24, as the file name says (check id_memory)",
        "gpus/nvidia/rtx-4090.toml: memory_gib = 24.0: the file name must end in -24gb (check id_memory)",
    ]


def test_an_exception_with_a_reason_lets_a_figure_pass(tmp_path: Path) -> None:
    write(
        tmp_path, bandwidth_gb_s="936", tail='[exceptions]\nbandwidth_ratio = "clock lowered by the vendor"'
    )
    assert read(tmp_path)[1] == []


def test_an_exception_that_is_not_needed_or_not_known_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, tail='[exceptions]\nbandwidth_ratio = "no longer so"\nbandwith_unit = "typed wrongly"')
    _, faults = read(tmp_path)
    assert faults == [
        f"{FILE}: exceptions.bandwidth_ratio: the record passes this check: remove the exception",
        f"{FILE}: exceptions.bandwith_unit: unknown check; nearest: bandwidth_unit",
    ]


def test_a_number_without_a_source_and_a_source_without_a_number_are_faults(tmp_path: Path) -> None:
    write(tmp_path)
    text = (tmp_path / FILE).read_text().replace('"tdp_w"]', '"link_gb_s"]')
    (tmp_path / FILE).write_text(text)
    _, faults = read(tmp_path)
    assert faults == [
        f"{FILE}: cite.techpowerup/rtx-4090 = 'link_gb_s': cites a field that is not set",
        f"{FILE}: tdp_w = 450.0: number without a citation: list it under [cite]",
    ]


def test_one_id_may_exist_once_and_lies_in_the_folder_of_its_vendor(tmp_path: Path) -> None:
    write(tmp_path, "gpus/amd/rtx-4090-24gb.toml")
    write(tmp_path)
    write(tmp_path, "gpus/nvidia/ada/rtx-4080-24gb.toml")
    write(tmp_path, "gpus/nvidia/RTX-4070-24gb.toml")
    tables, faults = read(tmp_path)
    layout = "must be gpus/<vendor>/<gpu>.toml; ids have lower-case letters, digits, '.' and '-'"
    assert faults == [
        "gpus/amd/rtx-4090-24gb.toml: family = 'nv-ada': belongs to vendor 'nvidia', the file is in 'amd' "
        "(check vendor_family)",
        f"gpus/nvidia/RTX-4070-24gb.toml: path = 'nvidia/RTX-4070-24gb': {layout}",
        f"gpus/nvidia/ada/rtx-4080-24gb.toml: path = 'nvidia/ada/rtx-4080-24gb': {layout}",
        f"{FILE}: id = 'rtx-4090-24gb': this gpu exists already: gpus/amd/rtx-4090-24gb.toml",
    ]
    assert tables["gpus"].height == 1


def test_broken_files_do_not_stop_the_reading(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "gpus/nvidia/broken-8gb.toml").write_text('name = "x"\nmemory_gib = \n')
    (tmp_path / "gpus/nvidia/empty-8gb.toml").write_text("")
    tables, faults = read(tmp_path)
    assert len(faults) == 2
    assert faults[0].startswith("gpus/nvidia/broken-8gb.toml:2:")
    assert faults[1].startswith("gpus/nvidia/empty-8gb.toml:")
    assert tables["gpus"].get_column("gpu").to_list() == ["rtx-4090-24gb"]


HEADER = "gpu,device,os,measure,reading_mib,state,reason,citation,locator\n"


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("rtx-4090-24gb,RTX 4090,linux,cuda-total,23.5,accepted,,a/b,x",
         "reading_mib = 23.5: is 0.000956 of the 24 GiB of rtx-4090-24gb: must be MiB, 0.5 to 1 of them"),
        ("rtx-490-24gb,RTX 4090,linux,cuda-total,24077,accepted,,a/b,x",
         "gpu = 'rtx-490-24gb': unknown gpu; nearest: rtx-4090-24gb"),
        ("rtx-4090-24gb,RTX 4090,linux,cuda-totals,24077,accepted,,a/b,x", "nearest: cuda-total"),
        ("rtx-4090-24gb,RTX 4090,linux,cuda-total,24077,flagged,,a/b,x", "a flagged reading needs a reason"),
        (",RTX 4090,linux,cuda-total,,accepted,,a/b,x", "reading_mib: required field is missing"),
    ],
)  # fmt: skip
def test_a_wrong_reading_is_told_with_its_line(tmp_path: Path, row: str, fault: str) -> None:
    write(tmp_path)
    path = tmp_path / "usable_memory/readings.csv"
    path.parent.mkdir()
    path.write_text(HEADER + row + "\n")
    _, faults = read(tmp_path)
    assert len(faults) == 1, faults
    assert faults[0].startswith("usable_memory/readings.csv:2:")
    assert fault in faults[0]


def test_a_reading_counts_for_its_gpu_and_may_be_given_once(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "usable_memory/readings.csv"
    path.parent.mkdir()
    row = "rtx-4090-24gb,RTX 4090,linux,cuda-total,24077,accepted,,a/b,x\n"
    path.write_text(HEADER + row + row)
    tables, faults = read(tmp_path)
    assert len(faults) == 1
    assert faults[0].startswith("usable_memory/readings.csv:3:")
    assert faults[0].endswith("this reading is given already in usable_memory/readings.csv:2")
    gpu = tables["gpus"].row(0, named=True)
    assert (gpu["usable_linux_gib"], gpu["usable_basis"]) == (
        pytest.approx(24077 / 1024, abs=1e-5),
        "measured",
    )


@pytest.fixture(scope="module")
def published() -> tuple[dict[str, pl.DataFrame], list[str]]:
    return read(SOURCES)


def test_the_sources_have_no_fault_and_enough_published_gpus(
    published: tuple[dict[str, pl.DataFrame], list[str]],
) -> None:
    tables, faults = published
    assert faults == []
    assert violations(tables["gpus"], "gpus") == []
    assert violations(tables["usable_memory"], "usable_memory", {"gpus": tables["gpus"]}) == []
    assert tables["gpus"].get_column("published").sum() >= 285


def test_what_is_published_is_complete_and_sure_enough(
    published: tuple[dict[str, pl.DataFrame], list[str]],
) -> None:
    gpus = published[0]["gpus"].filter("published")
    assert gpus.select(pl.col("memory_gib", "bandwidth_gb_s").null_count()).row(0) == (0, 0)
    assert set(gpus.get_column("confidence")) == {"high", "medium"}
    assert "cpu" not in set(gpus.get_column("category"))
    apple = pl.col("vendor") == "apple"
    own = gpus.select(
        pl.when(apple).then("usable_macos_gib").otherwise("usable_linux_gib").alias("own"), "memory_gib"
    )
    assert own.filter(~pl.col("own").is_between(0.6 * pl.col("memory_gib"), pl.col("memory_gib"))).height == 0


def test_known_traps_are_not_in_the_sources(published: tuple[dict[str, pl.DataFrame], list[str]]) -> None:
    gpus = {row["gpu"]: row for row in published[0]["gpus"].iter_rows(named=True)}
    assert gpus["rtx-3060-12gb"]["bandwidth_gb_s"] == 360
    assert gpus["rtx-3060-8gb"]["bandwidth_gb_s"] == 240
    assert gpus["rtx-2000-ada-16gb"]["bandwidth_gb_s"] == 224
    assert gpus["apple-m3-max-30c-96gb"]["bandwidth_gb_s"] == 300
    assert gpus["apple-m6-12c-16gb"]["bandwidth_gb_s"] < gpus["apple-m6-12c-24gb"]["bandwidth_gb_s"]
    assert (gpus["mi250x-64gb"]["devices_per_board"], gpus["mi250x-64gb"]["bandwidth_gb_s"]) == (2, 1638.4)
    assert (
        gpus["atlas-300i-duo-48gb"]["devices_per_board"],
        gpus["atlas-300i-duo-48gb"]["bandwidth_gb_s"],
    ) == (2, 204)
    assert gpus["h100-sxm5-80gb"]["fp16_dense_tflops"] == 989
    assert "tdp_w" in gpus["rtx-4090-24gb"]["unverified_fields"].split(";")


def test_a_record_with_a_wrong_word_still_tells_of_its_wrong_units(tmp_path: Path) -> None:
    write(tmp_path, family='"nv-adda"', bandwidth_gb_s="1.008", boost_clock_mhz="2.52")
    path = tmp_path / FILE
    path.write_text(path.read_text().replace('"tdp_w"', '"pcie_gen"'))
    _, faults = read(tmp_path)
    assert [fault.split(": ")[1].split(" = ")[0] for fault in faults] == [
        "bandwidth_gb_s",
        "boost_clock_mhz",
        "family",
        "tdp_w",
    ]
    assert "looks like TB/s: write 1008" in faults[0]
    assert "nearest: nv-ada" in faults[2]
    assert "number without a citation" in faults[3]
