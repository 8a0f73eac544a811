from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class MnistDigitClassifier(ImageClassifier):
    """Which digit a picture shows, as TorchServe's example has it."""

    image_processing = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])

    def postprocess(self, data):
        return data.argmax(1).tolist()
