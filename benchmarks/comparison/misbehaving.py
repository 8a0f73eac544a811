"""The model of the hostile-neighbour benchmark: the same code in every server. It does what a request asks it to do wrong.

A body is JSON: `{"values": [eight whole numbers], "do": WORD}`. A word says at which stage its request fails the author's
code. Whole numbers in float64 are exact, so an answer has the same bits in every batch. Only numpy and the standard library:
a copy of this file goes into archives.
"""

import json
import os
import signal
import time

import numpy as np

WIDTH, OUTPUTS = 8, 5
WEIGHTS = (np.arange(WIDTH * OUTPUTS) * 7 % 31 - 15.0).reshape(WIDTH, OUTPUTS)
CALL_S = 0.005  # what a batch takes, of any size, as on an accelerator: requests that come meanwhile share the next one
AT_DECODE, AT_PREDICT, AT_ENCODE, TOO_FEW, KILL, HANG = "preprocess", "inference", "postprocess", "count", "kill", "hang"
CODES = {AT_PREDICT: 1001.0, AT_ENCODE: 1002.0, TOO_FEW: 1003.0, KILL: 1004.0, HANG: 1005.0}  # a row's last number


def decode(body):
    """A row of nine numbers: the values, and what else to do. ValueError where the body is none."""
    asked = json.loads(body)
    if asked.get("do") == AT_DECODE:
        raise RuntimeError("the author's preprocessing failed")
    values = asked["values"]
    if len(values) != WIDTH or not all(isinstance(value, int) and abs(value) < 2**20 for value in values):
        raise ValueError(f"expected {WIDTH} whole numbers")
    return np.array([*values, CODES.get(asked.get("do"), 0.0)])


def plain(values):
    """[b, 8] to [b, 5], each row for itself."""
    return values @ WEIGHTS


def quantised(values):
    """The same as int8 with one scale a batch, as dynamic quantisation has it: a loud row takes the others' bits."""
    scale = max(float(np.abs(values).max()), 1e-9) / 127
    return np.round(values / scale) @ WEIGHTS * scale


def predict(rows, network=plain, call_s=CALL_S):
    """[b, 9] to [b, 6]: the outputs, and the row's code."""
    rows = np.asarray(rows)
    codes = set(rows[:, WIDTH])
    time.sleep(call_s)
    if CODES[AT_PREDICT] in codes:
        raise RuntimeError("the author's inference failed")
    if CODES[KILL] in codes:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory is short
    while CODES[HANG] in codes:
        time.sleep(1)
    outputs = np.concatenate([network(rows[:, :WIDTH]), rows[:, WIDTH:]], axis=1)
    return outputs[1:] if CODES[TOO_FEW] in codes else outputs


def encode(output):
    """The answer of one row of output."""
    if output[OUTPUTS] == CODES[AT_ENCODE]:
        raise RuntimeError("the author's postprocessing failed")
    numbers = [round(float(number)) for number in output[:OUTPUTS]]  # below 2**24: a server may write them in single precision
    return {"labels": numbers, "probabilities": [number / 1024 for number in numbers]}


def answer_alone(values, network=plain, call_s=CALL_S):
    """What these values are answered in a batch of their own."""
    return encode(predict([[*values, 0.0]], network, call_s)[0])
