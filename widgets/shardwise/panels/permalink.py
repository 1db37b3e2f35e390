"""The scenario in the page's address, read once at load and written when it rests."""

from __future__ import annotations

import anywidget
import traitlets

from shardwise.panels.assets import STYLE, script
from shardwise.panels.feed import Feed


class Permalink(anywidget.AnyWidget):
    """`search` arrives from the address of a Voila page; `feed.data[key]` is what it shall be.

    Works with kernels that ran before anybody asked, because the browser reads the address itself.
    In JupyterLab the address is not touched and `search` stays empty; the link is shown to copy.
    The query travels in the feed, so that a move is one message.

    Example:
        link = Permalink(feed)
        link.observe(lambda change: reopen(change["new"]), "search")   # "?v=1&gpus=8"
        feed.push({"permalink": "v=1&gpus=16"})
    """

    _esm = script("channel.js", "elements.js", "permalink.js")
    _css = STYLE
    channel = traitlets.Unicode(read_only=True).tag(sync=True)
    key = traitlets.Unicode(read_only=True).tag(sync=True)
    search = traitlets.Unicode().tag(sync=True, echo_update=False)

    def __init__(self, feed: Feed, key: str = "permalink") -> None:
        """The link whose query stands under `key` of this feed."""
        self.set_trait("channel", feed.channel)
        self.set_trait("key", key)
        super().__init__()
