"""`model.pointwise=linear`: 1 x 1 convolutions of NHWC
images as matrix products over the channels.
"""

from torch import Tensor, nn
from torch.nn.functional import linear


class PointwiseLinear(nn.Conv2d):
    """A 1 x 1 convolution of stride 1: the channels of a
    channels-last image are the rows of a matrix, without a copy.

    All of its passes are matrix products, which Inductor can fuse with what is around them; it has
    the backward pass of a convolution computed by cuDNN.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the convolution's name
        """(N, C, H, W) to (N, out, H, W), both channels-last in memory."""
        return linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(
            0, 3, 1, 2
        )

    @staticmethod
    def computes(layer: nn.Conv2d) -> bool:
        ones = {*layer.kernel_size, *layer.stride, layer.groups} == {1}
        return ones and layer.padding in ((0, 0), "valid", "same")
