import asyncio


class Waits:
    """A coroutine, which counts its batches."""

    def initialize(self, context):
        self.batches = 0

    async def handle(self, data, context):
        self.batches += 1
        await asyncio.sleep(0)
        bodies = [bytes(row.get("data") or row.get("body")) for row in data]
        if b"boom" in bodies:
            raise ValueError("a whole batch")
        return [f"{self.batches} {len(bodies)}" for _ in bodies]
