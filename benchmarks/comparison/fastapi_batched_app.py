"""FastAPI with batches as people write them: a queue, a task that gathers what comes within the delay, a future a request."""

import asyncio
from contextlib import asynccontextmanager

import classifier
import uvicorn
from classifier import SETTINGS
from fastapi import FastAPI, UploadFile

decode, classify, encode = classifier.decoder(), classifier.model(), classifier.encoder()
waiting, tasks = asyncio.Queue(), []


async def batches():
    while True:
        batch, started = [await waiting.get()], asyncio.get_running_loop().time()
        while len(batch) < SETTINGS["batch_size"] and asyncio.get_running_loop().time() < started + SETTINGS["delay_ms"] / 1000:
            await asyncio.sleep(0.001)
            while len(batch) < SETTINGS["batch_size"] and not waiting.empty():
                batch.append(waiting.get_nowait())
        try:
            outputs = await asyncio.to_thread(classify, [item for item, _ in batch])
            results = [(future.set_result, output) for (_, future), output in zip(batch, outputs, strict=True)]
        except Exception as error:
            results = [(future.set_exception, error) for _, future in batch]
        for (_, future), (settle, result) in zip(batch, results, strict=True):
            future.done() or settle(result)  # cancelled: its request timed out


@asynccontextmanager
async def lifespan(app):
    tasks.append(asyncio.create_task(batches()))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: UploadFile):
    future = asyncio.get_running_loop().create_future()
    await waiting.put((decode(await request.read()), future))
    return encode(await asyncio.wait_for(future, SETTINGS.get("timeout_s", 60)))


if __name__ == "__main__":
    where = {"host": "127.0.0.1", "port": SETTINGS["port"], "workers": SETTINGS["processes"]}
    uvicorn.run("fastapi_batched_app:app", **where, log_level="error")
