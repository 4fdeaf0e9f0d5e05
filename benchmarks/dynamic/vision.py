"""Networks for images: classifiers, detectors, segmenters, with batch, height and width left open."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.dynamic.case import Case, Inputs


def images(batch: int, height: int, width: int) -> Inputs:
    """Images of three channels."""
    return (torch.randn(batch, 3, height, width),)


def block(into: int, out: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(out), nn.ReLU(True)
    )


class Residual(nn.Module):
    """A classifier of residual blocks with a global average."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.one, self.two, self.skip = block(16, 32, 2), block(32, 32), nn.Conv2d(16, 32, 1, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.two(self.one(x)) + self.skip(x)
        result: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return result


class Squeezed(nn.Module):
    """Fire modules, pooling that rounds up, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 24, 3, 2), nn.Conv2d(24, 8, 1)
        self.small, self.large = nn.Conv2d(8, 16, 1), nn.Conv2d(8, 16, 3, padding=1)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Conv2d(8, 32, 1), nn.Hardsigmoid()
        )
        self.head = nn.Conv2d(32, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, ceil_mode=True)
        s = F.relu(self.squeeze(x))
        x = torch.cat([F.relu(self.small(s)), F.relu(self.large(s))], 1)
        x = F.max_pool2d(x * self.gate(x), 3, 2, ceil_mode=True)
        result: Tensor = self.head(x).mean((2, 3))
        return result


class UNet(nn.Module):
    """An encoder and a decoder with skips; upsampling by transposed convolution or by interpolation."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        self.a, self.b, self.c = block(3, 16), block(16, 32), block(32, 48)
        self.up = (
            nn.ModuleList([nn.ConvTranspose2d(48, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)]) if transposed else None
        )
        self.thin = nn.ModuleList([nn.Conv2d(48, 32, 1), nn.Conv2d(32, 16, 1)])
        self.d, self.e, self.head = block(64, 32), block(32, 16), nn.Conv2d(16, 2, 1)

    def raised(self, x: Tensor, level: int, like: Tensor) -> Tensor:
        """``x`` at the next finer level."""
        if self.up is None:
            return F.interpolate(self.thin[level](x), size=like.shape[2:], mode="bilinear", align_corners=False)
        x = self.up[level](x)
        dy, dx = like.shape[2] - x.shape[2], like.shape[3] - x.shape[3]
        return F.pad(x, [0, dx, 0, dy])

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x)
        b = self.b(F.max_pool2d(a, 2))
        c = self.c(F.max_pool2d(b, 2))
        b = self.d(torch.cat([b, self.raised(c, 0, b)], 1))
        result: Tensor = self.head(self.e(torch.cat([a, self.raised(b, 1, a)], 1)))
        return result


class Pyramid(nn.Module):
    """A feature pyramid whose coarse levels are enlarged to the finer ones, and boxes from anchors made of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = block(3, 16, 2), block(16, 32, 2), block(32, 48, 2)
        self.side = nn.ModuleList([nn.Conv2d(n, 24, 1) for n in (16, 32, 48)])
        self.boxes, self.scores = nn.Conv2d(24, 4, 3, padding=1), nn.Conv2d(24, 5, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.a(x)
        b = self.b(a)
        c = self.c(b)
        levels = [self.side[2](c)]
        for k, source in ((1, b), (0, a)):
            levels.append(self.side[k](source) + F.interpolate(levels[-1], size=source.shape[-2:], mode="nearest"))
        boxes, scores = [], []
        for level, stride in zip(levels, (8, 4, 2), strict=True):
            h, w = level.shape[2:]
            rows, columns = torch.arange(h).float(), torch.arange(w).float()
            grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1).reshape(1, -1, 2) * stride
            sides = self.boxes(level).flatten(2).transpose(1, 2).exp() * stride
            boxes.append(torch.cat([grid - sides[..., :2], grid + sides[..., 2:]], -1))
            scores.append(self.scores(level).flatten(2).transpose(1, 2).sigmoid())
        return torch.cat(boxes, 1), torch.cat(scores, 1)


class Best(nn.Module):
    """The best of the boxes of a pyramid, by top-k and gathering."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Pyramid()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        boxes, scores = self.inner(x)
        best, place = scores.amax(-1).topk(10, 1)
        return torch.gather(boxes, 1, place.unsqueeze(-1).expand(-1, -1, 4)), best


class Segmenter(nn.Module):
    """Dilated convolutions, a pooled context, enlarged to the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.far = block(3, 16, 2), block(16, 32, 2), nn.Conv2d(32, 32, 3, padding=4, dilation=4)
        self.context, self.head = nn.Conv2d(32, 32, 1), nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        f = self.wide(self.stem(x))
        context = F.interpolate(
            self.context(f.mean((2, 3), keepdim=True)), size=f.shape[2:], mode="bilinear", align_corners=True
        )
        return F.interpolate(
            self.head(torch.cat([self.far(f), context], 1)), size=x.shape[2:], mode="bilinear", align_corners=True
        )


class Larger(nn.Module):
    """Super-resolution: pixel shuffle beside bicubic enlargement."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 5, padding=2), nn.Conv2d(16, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = F.pixel_shuffle(self.b(F.relu(self.a(x))), 2) + F.interpolate(
            x, scale_factor=2, mode="bicubic"
        )
        return result


class Windows(nn.Module):
    """Attention in windows of an image padded to whole windows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Conv2d(3, 16, 2, 2), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, (4 - w % 4) % 4, 0, (4 - h % 4) % 4))
        tall, wide = x.shape[1], x.shape[2]
        windows = x.view(n, tall // 4, 4, wide // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).chunk(3, -1)
        mixed = self.out((q @ k.transpose(1, 2) * 0.25).softmax(-1) @ v)
        back = mixed.view(n, tall // 4, wide // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(n, tall, wide, c)
        result: Tensor = back[:, :h, :w].mean((1, 2))
        return result


class Patches(nn.Module):
    """A vision transformer whose table of positions is interpolated to the image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 32, 4, 4))
        self.first = nn.Parameter(torch.randn(1, 1, 32))
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + F.interpolate(self.places, size=x.shape[2:], mode="bicubic", align_corners=False)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x.flatten(2).transpose(1, 2)], 1)
        result: Tensor = self.head(self.layer(x)[:, 0])
        return result


SIZES = (2, 64, 96), (1, 80, 72)
CASES = (
    Case("resnet", Residual, images, *SIZES),
    Case("resnet_script", Residual, images, *SIZES, script=True),
    Case("squeezenet", Squeezed, images, *SIZES),
    Case("unet_transposed", lambda: UNet(True), images, (2, 32, 48), (1, 64, 40), script=True),
    Case("unet_bilinear", lambda: UNet(False), images, (2, 33, 48), (1, 64, 42)),
    Case("unet_bilinear_script", lambda: UNet(False), images, (2, 33, 48), (1, 64, 42), script=True),
    Case("pyramid", Pyramid, images, (2, 64, 48), (1, 40, 72)),
    Case("pyramid_script", Pyramid, images, (2, 64, 48), (1, 40, 72), script=True),
    Case("detector_best", Best, images, (2, 64, 48), (1, 40, 72)),
    Case("segmenter", Segmenter, images, (2, 65, 48), (1, 40, 72)),
    Case("super_resolution", Larger, images, (2, 24, 17), (1, 40, 30), script=True),
    Case("window_attention", Windows, images, (2, 26, 34), (1, 40, 50)),
    Case("patches_interpolated", Patches, images, (2, 32, 48), (1, 64, 40)),
)
