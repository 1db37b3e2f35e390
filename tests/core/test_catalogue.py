"""The catalogue: figures against data sheets, against arithmetic on the silicon, and row checks."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from shardwise.core import catalogue
from shardwise.core.errors import ScenarioError
from shardwise.core.hardware import DTYPES, Gpu
from shardwise.core.model import Model
from shardwise.core.units import GIB

GPUS = catalogue.gpus()
LINKS = catalogue.links()

# Devices as published: key, SMs or compute units, FLOP a clock and unit in dense fp16 with fp32
# accumulation, boost clock in MHz. Whitepapers: V100 (table 1), Turing (table 4), A100 (table 1),
# GA102 (table 9), Ada (appendix A, B), H100 (table 3), RTX Blackwell (appendix A, B), CDNA 2 to 4.
SILICON = [
    ("v100-sxm-16gb", 80, 1024, 1530),
    ("t4", 40, 1024, 1590),
    ("rtx-2080-ti", 68, 512, 1545),
    ("rtx-3060-12gb", 28, 512, 1777),
    ("rtx-3080-10gb", 68, 512, 1710),
    ("rtx-3090", 82, 512, 1695),
    ("rtx-a6000", 84, 1024, 1800),
    ("a40", 84, 1024, 1740),
    ("a10", 72, 1024, 1695),
    ("a30", 56, 2048, 1440),
    ("a100-sxm-80gb", 108, 2048, 1410),
    ("a100-pcie-40gb", 108, 2048, 1410),
    ("rtx-4080", 76, 512, 2505),
    ("rtx-4090", 128, 512, 2520),
    ("rtx-6000-ada", 142, 1024, 2505),
    ("l4", 58, 1024, 2040),
    ("l40s", 142, 1024, 2520),
    ("rtx-pro-6000-blackwell", 188, 1024, 2617),
    ("rtx-5080", 84, 512, 2617),
    ("rtx-5090", 170, 512, 2407),
    ("h100-sxm-80gb", 132, 4096, 1830),
    ("h100-pcie-80gb", 114, 4096, 1620),
    ("mi210", 104, 1024, 1700),
    ("mi250x", 110, 1024, 1700),
    ("mi300x", 304, 2048, 2100),
    ("mi355x", 256, 4096, 2400),
    ("mi350x", 256, 4096, 2200),
]

# Memory as published: key, bus width in bits, data rate in Gbit/s a pin.
MEMORY = [
    ("t4", 256, 10),
    ("rtx-2080-ti", 352, 14),
    ("rtx-3060-12gb", 192, 15),
    ("rtx-3080-10gb", 320, 19),
    ("rtx-3090", 384, 19.5),
    ("rtx-4080", 256, 22.4),
    ("rtx-4090", 384, 21),
    ("rtx-5080", 256, 30),
    ("rtx-5090", 512, 28),
    ("rtx-a4000", 256, 14),
    ("rtx-a5000", 384, 16),
    ("rtx-a6000", 384, 16),
    ("rtx-6000-ada", 384, 20),
    ("rtx-pro-6000-blackwell", 512, 28),
    ("a10", 384, 12.5),
    ("a40", 384, 14.5),
    ("l4", 192, 12.5),
    ("l40s", 384, 18),
    ("v100-sxm-32gb", 4096, 1.752),
    ("a100-sxm-40gb", 5120, 2.43),
    ("a100-sxm-80gb", 5120, 3.186),
    ("h100-sxm-80gb", 5120, 5.23),
    ("mi250x", 4096, 3.2),
    ("mi300x", 8192, 5.2),
]

# What nvidia-smi prints as total memory, in MiB.
NVIDIA_SMI = [
    ("t4", 15360),
    ("a10", 23028),
    ("l4", 23034),
    ("l40s", 46068),
    ("rtx-4090", 24564),
    ("rtx-6000-ada", 49140),
    ("a100-sxm-40gb", 40960),
    ("a100-sxm-80gb", 81920),
    ("h100-sxm-80gb", 81559),
    ("h20-96gb", 97871),
    ("h200-sxm-141gb", 143771),
    ("b200-sxm-180gb", 183359),
    ("gb200-186gb", 189471),
    ("b300-sxm-270gb", 275040),
    ("gb300-279gb", 284208),
]

# Single figures of data sheets: key, dtype or field, value.
PUBLISHED = [
    ("p100-sxm-16gb", "fp32", 10.6e12),  # Tesla P100 whitepaper, table 1
    ("v100-sxm-32gb", "fp32", 15.7e12),  # V100 data sheet, January 2020
    ("v100-pcie-16gb", "fp16", 112e12),  # V100 data sheet, January 2020
    ("a100-sxm-80gb", "fp32", 19.5e12),  # A100 data sheet, June 2021
    ("a100-sxm-80gb", "tf32", 156e12),  # A100 data sheet, June 2021
    ("a100-pcie-80gb", "bandwidth", 1935e9),  # A100 data sheet, June 2021
    ("h100-sxm-80gb", "fp8", 3958e12 / 2),  # H100 data sheet, printed with sparsity
    ("h100-nvl-94gb", "bf16", 1671e12 / 2),  # H100 data sheet 2023, printed with sparsity
    ("h200-sxm-141gb", "bandwidth", 4.8e12),  # H200 data sheet
    ("h20-96gb", "bf16", 148e12),  # H20 product overview
    ("b200-sxm-180gb", "bf16", 36e15 / 8 / 2),  # HGX B200 data sheet, board, with sparsity
    ("gb200-186gb", "fp8", 720e15 / 72 / 2),  # GB200 NVL72 data sheet, rack, with sparsity
    ("gb200-186gb", "bandwidth", 576e12 / 72),  # GB200 NVL72 data sheet, rack
    ("l4", "fp8", 485e12 / 2),  # L4 data sheet, printed with sparsity
    ("mi300x", "fp8", 2614.9e12),  # MI300X data sheet
    ("mi300x", "fp32", 163.4e12),  # MI300X data sheet
    ("mi250x", "bf16", 383e12 / 2),  # MI250X data sheet, card of two dies
    ("mi325x", "bandwidth", 6e12),  # MI325X data sheet
    ("mi355x", "bandwidth", 8e12),  # MI355X data sheet
    ("mi355x", "fp8", 5033.2e12),  # MI355X data sheet
    ("gaudi-3", "bf16", 1835e12),  # Gaudi 3 white paper
]

# Sum over all lanes, both directions, as the data sheets print it, in GB/s.
TOTALS = [
    ("nvlink-1", 160),
    ("nvlink-2", 300),
    ("nvlink-3", 600),
    ("nvlink-4", 900),
    ("nvlink-5", 1800),
    ("nvlink-3-a800", 400),
    ("nvlink-bridge-3090", 112.5),
    ("nvlink-bridge-h100", 600),
    ("infinity-fabric-mi300x", 896),
    ("infinity-fabric-mi350x", 1075.2),
]


def test_the_catalogue_is_wide() -> None:
    """At least 45 devices of three vendors, from Pascal to Blackwell Ultra and CDNA 4."""
    assert len(GPUS) >= 45
    assert {gpu.vendor for gpu in GPUS.values()} == {"NVIDIA", "AMD", "Intel"}
    years = {"Pascal", "Volta", "Turing", "Ampere", "Ada Lovelace", "Hopper", "Blackwell"}
    assert years <= {gpu.architecture for gpu in GPUS.values()}


@pytest.mark.parametrize(("key", "units", "per_clock", "mhz"), SILICON)
def test_dense_fp16_is_what_the_silicon_does(
    key: str, units: int, per_clock: int, mhz: int
) -> None:
    """Units x FLOP a clock x clock gives the peak: no sparse figure slipped in."""
    assert GPUS[key].peak("fp16") == pytest.approx(units * per_clock * mhz * 1e6, rel=0.02)


@pytest.mark.parametrize(("key", "bits", "gbit"), MEMORY)
def test_bandwidth_is_bus_width_times_data_rate(key: str, bits: int, gbit: float) -> None:
    """Bits of the bus x Gbit/s a pin / 8 gives the memory bandwidth."""
    assert GPUS[key].bandwidth == pytest.approx(bits * gbit * 1e9 / 8, rel=0.01)


@pytest.mark.parametrize(("key", "mib"), NVIDIA_SMI)
def test_usable_memory_is_a_little_under_nvidia_smi(key: str, mib: int) -> None:
    """CUDA shows 0.4 to 3.5 % less than nvidia-smi, and nvidia-smi no more than the vendor."""
    assert 0.965 < GPUS[key].usable_bytes / (mib * 2**20) < 0.998
    assert mib * 2**20 <= GPUS[key].memory_bytes


@pytest.mark.parametrize(("key", "what", "value"), PUBLISHED)
def test_figures_of_data_sheets(key: str, what: str, value: float) -> None:
    """Figures typed from the sheets named above."""
    gpu = GPUS[key]
    assert (gpu.peak(what) if what in DTYPES else getattr(gpu, what)) == pytest.approx(
        value, rel=0.002
    )


@pytest.mark.parametrize(("key", "total"), TOTALS)
def test_links_count_one_direction(key: str, total: float) -> None:
    """Vendors print both directions together; a link here has half."""
    assert LINKS[key].bytes_per_second == total * 1e9 / 2


@pytest.mark.parametrize(("generation", "gigatransfers"), [(3, 8), (4, 16), (5, 32)])
def test_pcie_is_its_line_rate_after_coding(generation: int, gigatransfers: int) -> None:
    """16 lanes x GT/s x 128/130 / 8, and half of that when staged through the host."""
    peak = 16 * gigatransfers * 1e9 * 128 / 130 / 8
    assert LINKS[f"pcie-{generation}"].bytes_per_second == pytest.approx(peak, rel=0.001)
    staged = LINKS[f"pcie-{generation}-host-staged"].bytes_per_second
    assert staged == pytest.approx(peak / 2, rel=0.001)


@pytest.mark.parametrize("key", [k for k in LINKS if re.fullmatch(r"(ethernet|roce)-\d+", k)])
def test_networks_named_by_their_speed_have_it(key: str) -> None:
    """ethernet-100 is 100 Gbit/s: 12.5e9 bytes/s, shared by the node; RoCE is one port a GPU."""
    assert LINKS[key].bytes_per_second == float(key.split("-")[1]) * 1e9 / 8
    assert LINKS[key].per == ("node" if key.startswith("ethernet") else "gpu")


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_rows_of_cards_make_sense(gpu: Gpu) -> None:
    """Each card: sources named, less usable than built in, peaks that grow as dtypes shrink."""
    assert len(gpu.source) > 10
    assert re.match(r"(measured|rule): \S", gpu.usable_source)
    assert 0.75 * gpu.memory_bytes <= gpu.usable_bytes < gpu.memory_bytes
    assert gpu.memory_bytes % GIB == 0
    fp16 = gpu.peak("fp16") or gpu.peak("bf16")
    assert gpu.peak("fp32") <= fp16
    assert gpu.peak("tf32") <= 0.51 * fp16
    assert gpu.peak("fp8") <= 2.03 * fp16
    assert gpu.peak("bf16") in (0.0, fp16)
    assert gpu.bf16 == (gpu.peak("bf16") > 0) == gpu.flash_attention


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_cards_use_links_that_fit(gpu: Gpu) -> None:
    """No peer-to-peer means a host-staged link; bf16 is there from compute capability 8.0 on."""
    assert LINKS[gpu.link].scope == "intra"
    assert LINKS[gpu.network].scope == "inter"
    assert gpu.link.endswith("host-staged") == (not gpu.peer_to_peer)
    assert gpu.bf16 == (gpu.architecture not in {"Pascal", "Volta", "Turing"})
    assert (gpu.peak("fp8") > 0) <= (gpu.architecture not in {"Ampere", "CDNA 2"})


def test_geforce_cards_have_no_peer_to_peer() -> None:
    """NVIDIA's drivers refuse peer-to-peer over PCIe between GeForce cards."""
    geforce = [gpu for gpu in GPUS.values() if "GeForce" in gpu.name]
    assert len(geforce) >= 6
    assert not any(gpu.peer_to_peer for gpu in geforce)


def test_every_link_has_a_source_and_a_latency_below_a_millisecond() -> None:
    """Links name the document and where the latency comes from."""
    for link in LINKS.values():
        assert "latency:" in link.source
        assert 1e-6 < link.latency_seconds < 1e-3


def test_csv_files_hold_no_key_twice() -> None:
    """As many cards and links as rows in the files."""
    for name, found in (("gpus.csv", GPUS), ("links.csv", LINKS)):
        text = (catalogue.data_root() / name).read_text(encoding="utf-8")
        assert len(list(csv.reader(text.splitlines()))) - 1 == len(found)
        assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key) for key in found)


def test_tables_cannot_be_changed_by_a_caller() -> None:
    """The cached tables are read-only views."""
    with pytest.raises(TypeError):
        catalogue.gpus()["mine"] = GPUS["t4"]  # type: ignore[index]


def _gpu_row(**changes: str) -> str:
    text = (catalogue.data_root() / "gpus.csv").read_text(encoding="utf-8")
    row = next(row for row in csv.DictReader(text.splitlines()) if row["key"] == "t4")
    cells = (changes.get(column, row[column]) for column in catalogue.GPU_COLUMNS)
    return ",".join(catalogue.GPU_COLUMNS) + "\n" + ",".join(f'"{cell}"' for cell in cells) + "\n"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory_bytes": "16 GB"}, "line 2, memory_bytes"),
        ({"memory_bytes": "1.5"}, "line 2, memory_bytes"),
        ({"memory_bytes": ""}, "line 2, memory_bytes"),
        ({"usable_bytes": "99999999999"}, "line 2, gpu.usable_bytes"),
        ({"bandwidth": "nan"}, "line 2, bandwidth"),
        ({"bandwidth": "-1"}, "line 2, bandwidth"),
        ({"fp16": "fast"}, "line 2, fp16"),
        ({"fp16": "0"}, "line 2, fp16"),
        ({"bf16_support": "yes"}, "line 2, bf16_support"),
        ({"peer_to_peer": ""}, "line 2, peer_to_peer"),
        ({"gpus_per_node": "0"}, "line 2, gpus_per_node"),
        ({"source": " "}, "line 2, source"),
        ({"usable_source": ""}, "line 2, usable_source"),
        ({"name": ""}, "line 2, gpu.name"),
        ({"link": "nvlink-9"}, "t4, link"),
        ({"link": "infiniband-ndr"}, "t4, link"),
        ({"network": "nvlink-4"}, "t4, network"),
    ],
    ids=str,
)
def test_a_bad_row_names_its_line_and_column(changes: dict[str, str], told: str) -> None:
    """Whoever adds a row is told which line and column cannot be."""
    assert set(catalogue.parse_gpus(_gpu_row(), LINKS)) == {"t4"}
    with pytest.raises(ScenarioError, match=r"gpus\.csv") as caught:
        catalogue.parse_gpus(_gpu_row(**changes), LINKS)
    assert told in str(caught.value)


def _spoilt(kind: str, text: str) -> str:
    return {
        "header": text.replace("vendor", "maker", 1),
        "short row": text.rstrip("\n").rsplit(',"', 1)[0] + "\n",
        "open quote": text.rstrip("\n")[:-1],
        "long row": text.rstrip("\n") + ",more\n",
        "twice": text + text.splitlines()[1] + "\n",
        "empty": "",
    }[kind]


@pytest.mark.parametrize(
    "kind", ["header", "short row", "open quote", "long row", "twice", "empty"]
)
def test_a_broken_file_is_refused(kind: str) -> None:
    """A wrong header, a short or long row and a repeated key are errors, not guesses."""
    with pytest.raises(ScenarioError, match=r"gpus\.csv line"):
        catalogue.parse_gpus(_spoilt(kind, _gpu_row()), LINKS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"scope": "both"}, "link.scope"),
        ({"per": "rack"}, "link.per"),
        ({"bytes_per_second": "0"}, "bytes_per_second"),
        ({"latency_seconds": "3"}, "latency_seconds"),
        ({"source": ""}, "source"),
    ],
    ids=str,
)
def test_a_bad_link_names_its_line(changes: dict[str, str], told: str) -> None:
    """links.csv is checked as strictly as gpus.csv."""
    good = ["k", "n", "intra", "gpu", "1e9", "1e-6", "s"]
    row = dict(zip(catalogue.LINK_COLUMNS, good, strict=True))
    assert set(catalogue.parse_links(",".join(row) + "\n" + ",".join(good) + "\n")) == {"k"}
    text = ",".join(row) + "\n" + ",".join((row | changes).values()) + "\n"
    with pytest.raises(ScenarioError, match=r"links\.csv line 2") as caught:
        catalogue.parse_links(text)
    assert told in str(caught.value)


def test_models_load_by_name_and_once() -> None:
    """Every name loads; the same name gives the same object."""
    names = catalogue.model_names()
    assert names == tuple(sorted(set(names)))
    assert names
    for name in names:
        model = catalogue.load_model(name)
        assert isinstance(model, Model)
        assert (model.name, catalogue.load_model(name)) == (name, model)
        assert catalogue.load_model(name) is model


@pytest.mark.parametrize(
    "name", ["nope", "", "../gpus", "/etc/passwd", None, 7, ["gpt2"], "x" * 10**6]
)
def test_unknown_models_are_refused(name: Any) -> None:
    """Only names of the catalogue are opened, whatever path a name looks like."""
    with pytest.raises(ScenarioError, match="model is"):
        catalogue.load_model(name)


def test_an_unknown_model_is_told_the_nearest() -> None:
    """A slip of the finger names the model that was meant."""
    name = catalogue.model_names()[0]
    with pytest.raises(ScenarioError, match=re.escape(repr(name))):
        catalogue.load_model(name.upper())
