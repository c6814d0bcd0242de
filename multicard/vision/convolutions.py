"""`model.pointwise=linear`: compute 1 x 1 convolutions as matrix products over the channels."""

from torch import Tensor, nn
from torch.nn.functional import linear


class PointwiseLinear(nn.Conv2d):
    """A 1 x 1 convolution of stride 1, computed as a matrix product.

    The channels of a channels-last image are the rows of a matrix already, so nothing is copied.
    All passes are matrix products. Inductor can fuse them with the operations around them, while
    it leaves the backward pass of a convolution to cuDNN.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - nn.Conv2d names it so
        """Map (N, C, H, W) to (N, out, H, W), both channels-last in memory."""
        return linear(input.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(
            0, 3, 1, 2
        )

    @staticmethod
    def computes(layer: nn.Conv2d) -> bool:
        """Return True if this class can compute the layer."""
        ones = {*layer.kernel_size, *layer.stride, layer.groups} == {1}
        return ones and layer.padding in ((0, 0), "valid", "same")
