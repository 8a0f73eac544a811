"""MLServer's custom runtime, as its documentation has it: V2 tensors, which its adaptive batching joins and splits."""

import classifier
import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceResponse


class Classifier(MLModel):
    async def load(self):
        self.decoder, self.classify, self.encode = classifier.decoder(), classifier.model(), classifier.encoder()
        return True

    async def predict(self, payload):
        bodies = self.decode(payload.inputs[0], default_codec=Base64Codec)
        answers = [self.encode(output) for output in self.classify([self.decoder(body) for body in bodies])]
        keys = ("labels", "probabilities")
        outputs = [NumpyCodec.encode_output(key, np.array([answer[key] for answer in answers])) for key in keys]
        return InferenceResponse(model_name=self.name, outputs=outputs)
