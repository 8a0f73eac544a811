import asyncio


class Waits:
    """A coroutine, which counts its batches."""

    def initialize(self, context):
        self.batches = 0

    async def handle(self, data, context):
        self.batches += 1
        bodies = [bytes(row.get("data") or row.get("body")) for row in data]
        await asyncio.sleep(2 if bodies == [b"slow"] else 0)
        if b"boom" in bodies:
            raise ValueError("a whole batch")
        return [f"{self.batches} {len(bodies)}" for _ in bodies]
