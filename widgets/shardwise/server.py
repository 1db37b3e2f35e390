"""What a Jupyter server is told so that a slider answers at once and no kernel is left behind."""

from __future__ import annotations

from asyncio import Future
from time import monotonic

from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager


class PromptKernelConnection(ZMQChannelsWebsocketConnection):
    """A kernel websocket whose small messages leave without waiting for the last one's receipt.

    Jupyter Server leaves Nagle's algorithm on (RFC 896). Against a browser's delayed receipts it
    holds every second small message for about 40 ms, which is longer than a redraw takes.
    Named in `Voila.kernel_websocket_connection_class` and, for JupyterLab, in
    `ServerApp.kernel_websocket_connection_class`.
    """

    def connect(self) -> Future[None] | None:
        """Connect as always, with TCP_NODELAY set on the browser's side."""
        self.websocket_handler.set_nodelay(True)
        return super().connect()


class PatientKernelManager(AsyncMappingKernelManager):
    """Culls idle kernels, but not one that a visitor was given a moment ago.

    A kernel that waited in Voila's pool has been idle since it was made. Between leaving the pool
    and the page's connection it looks abandoned, and the culler would end it under the visitor.
    So its idle time counts at the earliest from when it left the pool. Named in
    `VoilaConfiguration.multi_kernel_manager_class`.
    """

    def __init__(self, **options: object) -> None:
        """As every kernel manager, with nothing met so far."""
        super().__init__(**options)
        self._met: dict[str, tuple[float, float]] = {}

    async def cull_kernel_if_idle(self, kernel_id: str) -> None:
        """Called at each round for each kernel outside the pool, or still being made for it.

        A kernel that was not met in the last rounds was in the pool meanwhile.
        """
        now = monotonic()
        first, last = self._met.get(kernel_id, (now, now))
        if now - last > 2.5 * self.cull_interval:
            first = now
        self._met[kernel_id] = (first, now)
        if now - first >= self.cull_idle_timeout:
            await super().cull_kernel_if_idle(kernel_id)
        self._met = {met: times for met, times in self._met.items() if met in self}
