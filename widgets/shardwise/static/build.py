"""Build `vega.js`, the one file of other people's code that the page needs.

    python widgets/shardwise/static/build.py          # writes it
    python widgets/shardwise/static/build.py --check  # says whether the committed file is this one

vl-convert holds Vega, Vega-Lite and vega-embed and bundles them without a network. The version of
Vega-Lite is pinned here; the version of vl-convert that was used stands in `THIRD-PARTY.txt`.
"""

from __future__ import annotations

import sys
from pathlib import Path

VEGA_LITE = "6.4"
STATIC = Path(__file__).resolve().parent
BUNDLE = STATIC / "vega.js"


def bundle() -> str:
    """The text of `vega.js`, built from `vega.src.js`."""
    import vl_convert

    source = (STATIC / "vega.src.js").read_text(encoding="utf-8")
    return vl_convert.javascript_bundle(source, vl_version=VEGA_LITE)


def main(arguments: list[str]) -> int:
    """Write the bundle, or with `--check` compare it; 0 when all is well."""
    built = bundle()
    if arguments != ["--check"]:
        BUNDLE.write_text(built, encoding="utf-8")
        print(f"{BUNDLE.name}: {len(built.encode()):,} bytes")
        return 0
    same = BUNDLE.read_text(encoding="utf-8") == built
    print(f"{BUNDLE.name} is {'up to date' if same else 'stale: run build.py'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
