"""FastAPI without batching, as its documentation has it: uvicorn's processes; a picture is read in a thread."""

from contextlib import asynccontextmanager

import classifier
import uvicorn
from classifier import SETTINGS
from fastapi import FastAPI, Request, UploadFile

loaded = {}


@asynccontextmanager
async def lifespan(app):
    loaded["decode"], loaded["classify"], loaded["encode"] = classifier.decoder(), classifier.model(), classifier.encoder()
    yield


app = FastAPI(lifespan=lifespan)


if SETTINGS["kind"] != "tensor":

    @app.post("/predict")
    def predict(request: UploadFile):
        return loaded["encode"](loaded["classify"]([loaded["decode"](request.file.read())])[0])

else:

    @app.post("/tensor")
    async def tensor(request: Request):
        return loaded["classify"]([loaded["decode"](await request.body())])[0]


if __name__ == "__main__":
    workers = SETTINGS["processes"]
    uvicorn.run("fastapi_app:app", host="127.0.0.1", port=SETTINGS["port"], workers=workers, log_level="error")
