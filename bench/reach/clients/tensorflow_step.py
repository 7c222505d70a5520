"""TensorFlow: products of several sizes."""
import tensorflow

device, = tensorflow.config.list_physical_devices("GPU")
tensorflow.config.experimental.set_memory_growth(device, True)
with tensorflow.device("/GPU:0"):
    weights = tensorflow.zeros((1024, 1024))
    for i in range(20):
        tensorflow.matmul(tensorflow.zeros((256 * (i + 1), 1024)), weights)
