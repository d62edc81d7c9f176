"""The models that benchmarks/zoo.py runs over: at least one of every family, untrained, with small example inputs."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import nn

from torchvision_ops import declare_torchvision_ops

BATCH = -1  # stands for the batch size in a shape


@dataclass(frozen=True)
class Input:
    """One tensor argument: normal numbers, or whole numbers below ``high`` (as floats or as integers)."""

    shape: tuple[int, ...]
    high: int | None = None
    floating: bool = True

    def make(self, batch: int) -> torch.Tensor:
        shape = [batch if size == BATCH else size for size in self.shape]
        if self.high is None:
            return torch.randn(shape, dtype=torch.float64)
        return torch.randint(self.high, shape).to(torch.float64 if self.floating else torch.int64)

    def __str__(self) -> str:
        return "×".join("B" if size == BATCH else str(size) for size in self.shape)


@dataclass(frozen=True)
class Length:
    """The number of valid samples of each sequence of a batch: different ones, the longest fills the tensor."""

    longest: int

    def make(self, batch: int) -> torch.Tensor:
        return torch.tensor([self.longest - 5 * index for index in range(batch)], dtype=torch.int64)

    def __str__(self) -> str:
        return "B lengths"


@dataclass(frozen=True)
class Model:
    """How to build one model of the zoo and what to feed it."""

    suite: str
    family: str
    name: str
    inputs: tuple[Any, ...]  # Input or Length
    kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    extra: tuple[Any, ...] = ()  # arguments after the tensors that are not tensors
    batches: tuple[int, int] = (1, 2)  # the example's batch size, and another one
    makes_floats: bool = False  # forward() makes float32 tensors of its own
    part: str = ""  # of the model, if not the whole: that of a detector that is not decoding

    @property
    def key(self) -> str:
        return f"{self.suite}/{self.name}"

    @property
    def input(self) -> str:
        return ", ".join(map(str, self.inputs))

    def build(self) -> nn.Module:
        """The untrained model; nothing is downloaded."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            declare_torchvision_ops()
            model = _BUILDERS[self.suite](self)
        assert isinstance(model, nn.Module)
        return model.get_submodule(self.part)

    def example(self, batch: int) -> tuple[Any, ...]:
        return (*(entry.make(batch) for entry in self.inputs), *self.extra)


def _from_torchvision(model: Model) -> Any:
    models = importlib.import_module("torchvision.models")
    with _smaller_mvit(model.inputs[0].shape) if "mvit" in model.name else contextlib.nullcontext():
        return models.get_model(model.name, weights=None, **model.kwargs)


def _from_pytorchcv(model: Model) -> Any:
    return importlib.import_module("pytorchcv.model_provider").get_model(model.name, pretrained=False, **model.kwargs)


def _from_timm(model: Model) -> Any:
    return importlib.import_module("timm").create_model(model.name, pretrained=False, **model.kwargs)


def _from_transformers(model: Model) -> Any:
    """The name is that of the class; the configuration is the default one, changed by kwargs."""
    kind = getattr(importlib.import_module("transformers"), model.name)
    return kind(kind.config_class(**model.kwargs))


def _from_smp(model: Model) -> Any:
    """The name is ``decoder-encoder``."""
    decoder, _, encoder = model.name.partition("-")
    kind = getattr(importlib.import_module("segmentation_models_pytorch"), decoder)
    return kind(encoder, encoder_weights=None, **model.kwargs)


_BUILDERS = {
    "torchvision": _from_torchvision,
    "pytorchcv": _from_pytorchcv,
    "timm": _from_timm,
    "transformers": _from_transformers,
    "smp": _from_smp,
}


def _smaller_mvit(shape: tuple[int, ...]) -> Any:
    """torchvision's mvit_v1_b and mvit_v2_s insist on one size of video; the class does not."""
    mvit = importlib.import_module("torchvision.models.video.mvit")
    small = {"temporal_size": shape[2], "spatial_size": tuple(shape[3:])}
    original = mvit.MViT
    return mock.patch.object(mvit, "MViT", lambda **settings: original(**{**settings, **small}))


def image(size: int | tuple[int, int] = 224, channels: int = 3) -> tuple[Input]:
    height, width = (size, size) if isinstance(size, int) else size
    return (Input((BATCH, channels, height, width)),)


def video(frames: int, size: int) -> tuple[Input]:
    return (Input((BATCH, 3, frames, size, size)),)


# ------------------------------------------------------------------------------------------------------- torchvision

_DETECTORS = {
    "fasterrcnn_resnet50_fpn": 128, "fasterrcnn_mobilenet_v3_large_fpn": 128, "retinanet_resnet50_fpn_v2": 128,
    "fcos_resnet50_fpn": 128, "maskrcnn_resnet50_fpn_v2": 128, "ssd300_vgg16": 300,
    "ssdlite320_mobilenet_v3_large": 320,
}  # fmt: skip


def _torchvision() -> Iterator[Model]:
    def add(family: str, names: str, inputs: tuple[Input, ...] | None = None, **kwargs: Any) -> Iterator[Model]:
        for name in names.split():
            yield Model("torchvision", family, name, inputs or image(), kwargs)

    yield from add("alexnet", "alexnet", image(96))
    yield from add("vgg", "vgg11 vgg11_bn vgg13 vgg16 vgg16_bn vgg19_bn", image(64))
    yield from add("resnet", "resnet18 resnet34 resnet50 resnet101 resnet152")
    yield from add("resnext", "resnext50_32x4d", image(128))
    yield from add("resnext", "resnext101_32x8d", image(64))
    yield from add("wide_resnet", "wide_resnet50_2", image(64))
    yield from add("densenet", "densenet121 densenet169", image(128))
    yield from add("squeezenet", "squeezenet1_0 squeezenet1_1")
    yield from add("googlenet", "googlenet", init_weights=False)
    yield from add("inception", "inception_v3", image(299), init_weights=False)
    yield from add("mobilenet", "mobilenet_v2 mobilenet_v3_small mobilenet_v3_large")
    yield from add("mnasnet", "mnasnet0_5 mnasnet1_0")
    yield from add("shufflenet", "shufflenet_v2_x0_5 shufflenet_v2_x1_0")
    yield from add("efficientnet", "efficientnet_b0 efficientnet_b1")
    yield from add("efficientnet_v2", "efficientnet_v2_s", image(128))
    yield from add("regnet", "regnet_x_400mf regnet_x_800mf regnet_y_400mf regnet_y_800mf")
    yield from add("convnext", "convnext_tiny", image(128))
    yield from add("swin", "swin_t swin_v2_t", image(128))
    yield from add("vit", "vit_b_32")
    yield from add("maxvit", "maxvit_t")
    yield from add("segmentation", "fcn_resnet50 deeplabv3_resnet50", image(64), weights_backbone=None, aux_loss=True)
    yield from add("segmentation", "deeplabv3_mobilenet_v3_large", image(128), weights_backbone=None)
    yield from add("segmentation", "lraspp_mobilenet_v3_large", image(128), weights_backbone=None)
    yield from add("video", "r3d_18 mc3_18 r2plus1d_18", video(8, 56))
    yield from add("video", "s3d", video(16, 224))
    yield from add("video", "mvit_v1_b mvit_v2_s", video(8, 64))
    yield from add("video", "swin3d_t", video(8, 64))
    for name, size in _DETECTORS.items():
        yield Model("torchvision", "detection", name, image(size), {"weights_backbone": None}, part="backbone")
    yield Model("torchvision", "optical_flow", "raft_small", (*image(128), *image(128)), extra=(3,), makes_floats=True)


# --------------------------------------------------------------------------------------------------------- pytorchcv

# One model of each module of pytorchcv.models, the smallest plausible one; the family is the module's name.
# 224x224 unless listed below.
_PYTORCHCV = """
alexnet:alexnet zfnet:zfnet vgg:bn_vgg11 bninception:bninception resnet:resnet10 preresnet:preresnet10
resnext:resnext14_16x4d seresnet:seresnet10 sepreresnet:sepreresnet10 seresnext:seresnext50_32x4d senet:senet16
resnesta:resnestabc14 ibnresnet:ibn_resnet50 ibnbresnet:ibnb_resnet50 ibnresnext:ibn_resnext50_32x4d
ibndensenet:ibn_densenet121 airnet:airnet50_1x64d_r16 airnext:airnext50_32x4d_r2 bamresnet:bam_resnet18
cbamresnet:cbam_resnet18 resattnet:resattnet56 sknet:sknet50 scnet:scnet50 regnet:regnety002 diaresnet:diaresnet10
diapreresnet:diapreresnet10 pyramidnet:pyramidnet101_a360 diracnetv2:diracnet18v2 sharesnet:sharesnet18
densenet:densenet121 condensenet:condensenet74_c8_g8 sparsenet:sparsenet121 peleenet:peleenet wrn:wrn50_2 drn:drnd22
dpn:dpn68 darknet:darknet_tiny darknet53:darknet53 channelnet:channelnet revnet:revnet38 irevnet:irevnet301
bagnet:bagnet9 dla:dla46c msdnet:msdnet22 fishnet:fishnet99 espnetv2:espnetv2_wd2 dicenet:dicenet_wd5
hrnet:hrnet_w18_small_v1 vovnet:vovnet27s selecsls:selecsls42 hardnet:hardnet39ds xdensenet:xdensenet121_2
squeezenet:squeezeresnet_v1_1 squeezenext:sqnxt23_w1 shufflenet:shufflenet_g3_wd4 shufflenetv2:shufflenetv2_wd2
shufflenetv2b:shufflenetv2b_wd2 menet:menet108_8x1_g3 mobilenet:mobilenet_wd4 mobilenetb:mobilenetb_wd4
fdmobilenet:fdmobilenet_wd4 mobilenetv2:mobilenetv2_wd4 mobilenetv3:mobilenetv3_small_w7d20 igcv3:igcv3_wd4
ghostnet:ghostnet mnasnet:mnasnet_small darts:darts proxylessnas:proxylessnas_cpu fbnet:fbnet_cb xception:xception
inceptionv3:inceptionv3 inceptionv4:inceptionv4 inceptionresnetv1:inceptionresnetv1 inceptionresnetv2:inceptionresnetv2
polynet:polynet nasnet:nasnet_4a1056 pnasnet:pnasnet5large spnasnet:spnasnet efficientnet:efficientnet_b0
efficientnetedge:efficientnet_edge_small_b mixnet:mixnet_s nin_cifar:nin_cifar10 resnet_cifar:resnet20_cifar10
preresnet_cifar:preresnet20_cifar10 resnext_cifar:resnext20_16x4d_cifar10 seresnet_cifar:seresnet20_cifar10
sepreresnet_cifar:sepreresnet20_cifar10 pyramidnet_cifar:pyramidnet110_a48_cifar10
densenet_cifar:densenet40_k12_bc_cifar10 xdensenet_cifar:xdensenet40_2_k24_bc_cifar10 wrn_cifar:wrn16_10_cifar10
wrn1bit_cifar:wrn20_10_1bit_cifar10 ror_cifar:ror3_56_cifar10 rir_cifar:rir_cifar10 msdnet_cifar10:msdnet22_cifar10
resdropresnet_cifar:resdropresnet20_cifar10 shakeshakeresnet_cifar:shakeshakeresnet20_2x16d_cifar10
shakedropresnet_cifar:shakedropresnet20_cifar10 fractalnet_cifar:fractalnet_cifar10
diaresnet_cifar:diaresnet20_cifar10 diapreresnet_cifar:diapreresnet20_cifar10 isqrtcovresnet:isqrtcovresnet18
resneta:resneta10 resnetd:resnetd50b fastseresnet:fastseresnet101b octresnet:octresnet10_ad2 resnet_cub:resnet10_cub
seresnet_cub:seresnet10_cub mobilenet_cub:mobilenet_wd4_cub proxylessnas_cub:proxylessnas_cpu_cub ntsnet_cub:ntsnet_cub
fcn8sd:fcn8sd_resnetd50b_voc pspnet:pspnet_resnetd50b_voc deeplabv3:deeplabv3_resnetd50b_voc
icnet:icnet_resnetd50b_cityscapes fastscnn:fastscnn_cityscapes cgnet:cgnet_cityscapes dabnet:dabnet_cityscapes
sinet:sinet_cityscapes bisenet:bisenet_resnet18_celebamaskhq danet:danet_resnetd50b_cityscapes fpenet:fpenet_cityscapes
contextnet:ctxnet_cityscapes lednet:lednet_cityscapes esnet:esnet_cityscapes edanet:edanet_cityscapes
enet:enet_cityscapes erfnet:erfnet_cityscapes linknet:linknet_cityscapes segnet:segnet_cityscapes
unet:unet_cityscapes sqnet:sqnet_cityscapes espcnet:espcnet_cityscapes
alphapose_coco:alphapose_fastseresnet101b_coco simplepose_coco:simplepose_resnet18_coco
simpleposemobile_coco:simplepose_mobile_resnet18_coco lwopenpose_cmupan:lwopenpose2d_mobilenet_cmupan_coco
ibppose_coco:ibppose_coco prnet:prnet centernet:centernet_resnet18_voc lffd:lffd20x5s320v2_widerface pfpcnet:pfpcnet
voca:voca8flame nvpattexp:nvpattexp116bazel76 visemenet:visemenet20 superpointnet:superpointnet jasper:jasper5x3
jasperdr:jasperdr10x5_en quartznet:quartznet5x5_en_ls tresnet:tresnet_m raft:raft_small
propainter_rfc:propainter_rfc propainter_ip:propainter_ip propainter:propainter
"""

_SEGMENTATION = (
    "fcn8sd", "pspnet", "deeplabv3", "icnet", "fastscnn", "cgnet", "dabnet", "sinet", "bisenet", "danet", "fpenet",
    "contextnet", "lednet", "esnet", "edanet", "enet", "erfnet", "linknet", "segnet", "unet", "sqnet", "espcnet",
)  # fmt: skip
_SIZES = {
    "inceptionv3": 299, "inceptionv4": 299, "inceptionresnetv2": 299, "inceptionresnetv1": 299, "xception": 299,
    "polynet": 331, "pnasnet": 331, "lffd": 128, "prnet": 256, "ibppose_coco": 128, "ntsnet_cub": 448,
}  # fmt: skip
_MAKES_FLOATS = ("raft", "superpointnet", "propainter", "propainter_rfc", "propainter_ip", "visemenet")
_AUDIO = Input((BATCH, 64, 96))
_SPECIAL: dict[str, tuple[tuple[Input | Length, ...], dict[str, Any], tuple[Any, ...]]] = {
    "alphapose_coco": (image((128, 96)), {"in_size": (128, 96)}, ()),
    "simplepose_coco": (image((128, 96)), {"in_size": (128, 96)}, ()),
    "simpleposemobile_coco": (image((128, 96)), {"in_size": (128, 96)}, ()),
    "lwopenpose_cmupan": (image(128), {"in_size": (128, 128)}, ()),
    "centernet": (image(128), {"in_size": (128, 128), "return_heatmap": True}, ()),
    "pfpcnet": (image((320, 240), channels=1), {}, ()),
    "superpointnet": (image(64, channels=1), {}, ()),
    "voca": ((Input((BATCH, 1, 16, 29)), Input((BATCH,), 8, floating=False)), {}, ()),
    "nvpattexp": ((Input((BATCH, 8, 16, 29)), Input((BATCH,), 8, floating=False)), {}, ()),
    "visemenet": ((Input((BATCH, 8, 195)), Input((BATCH, 76), 4)), {}, ()),
    "jasper": ((_AUDIO, Length(96)), {"from_audio": False}, ()),
    "jasperdr": ((_AUDIO, Length(96)), {"from_audio": False}, ()),
    "quartznet": ((_AUDIO, Length(96)), {"from_audio": False}, ()),
    "raft": ((*image(128), *image(128)), {}, ()),
    "propainter_rfc": ((Input((BATCH, 5, 2, 64, 64)), Input((BATCH, 5, 1, 64, 64), 2)), {}, ()),
    "propainter_ip": ((Input((5, 3, 64, 64)), Input((5, 1, 64, 64), 2), Input((4, 4, 64, 64))), {}, ("nearest",)),
    "propainter": (
        (
            Input((BATCH, 5, 3, 80, 144)), Input((BATCH, 5, 1, 80, 144), 2), Input((BATCH, 5, 1, 80, 144), 2),
            Input((BATCH, 3, 4, 80, 144)),
        ),
        {},
        (4,),
    ),
}  # fmt: skip


def _pytorchcv() -> Iterator[Model]:
    for entry in _PYTORCHCV.split():
        family, name = entry.split(":")
        if family in _SPECIAL:
            inputs, kwargs, extra = _SPECIAL[family]
            batches = (34, 36) if family == "visemenet" else (1, 2)  # slides a window over the batch
            yield Model("pytorchcv", family, name, inputs, kwargs, extra, batches, family in _MAKES_FLOATS)
        elif family in _SEGMENTATION:
            yield Model("pytorchcv", family, name, image(128), {"in_size": (128, 128)})
        else:
            yield Model("pytorchcv", family, name, image(32 if "cifar" in family else _SIZES.get(family, 224)))


# -------------------------------------------------------------------------------------------------------------- timm

# The smallest model of each module of timm.models with more than a patch embedding's convolutions, by its class; the
# family is the module's name. 128x128 unless listed below.
_TIMM = """
byobnet:test_byobnet byoanet:halonet_h1 coat:coat_tiny convmixer:convmixer_768_32 convnext:test_convnext
cpubone:cpubone_nano crossvit:crossvit_9_dagger_240 csatv2:csatv2 cspnet:cs3darknet_focus_s davit:davit_tiny
densenet:densenet121 dla:dla46x_c dpn:dpn48b edgenext:edgenext_xx_small efficientformer:efficientformer_l1
efficientformer_v2:efficientformerv2_s0 efficientnet:test_efficientnet efficientvim:efficientvim_m1
efficientvit_mit:efficientvit_b0 efficientvit_mit:efficientvit_l1 efficientvit_msra:efficientvit_m0
fasternet:fasternet_t0 fastvit:fastvit_t8 focalnet:focalnet_tiny_srf gcvit:gcvit_xxtiny ghostnet:ghostnet_050
hardcorenas:hardcorenas_b hgnet:hgnetv2_b0 hrnet:hrnet_w18_small iformer:iformer_t inception_next:inception_next_atto
inception_resnet_v2:inception_resnet_v2 inception_v3:inception_v3 inception_v4:inception_v4 lcnetv2:lcnetv2_small
levit:levit_128s levit:levit_256d lowformer:lowformer_b0 mambaout:test_mambaout maxxvit:maxvit_pico_rw_256
metaformer:poolformerv2_s12 mobilenetv3:mobilenetv3_small_050 mobilenetv5:mobilenetv5_base mobilevit:mobilevit_xxs
mvitv2:mvitv2_tiny nasnet:nasnetalarge nextvit:nextvit_small nfnet:test_nfnet pnasnet:pnasnet5large pvt_v2:pvt_v2_b0
rdnet:rdnet_tiny regnet:regnetx_002 repghost:repghostnet_050 repvit:repvit_m1 res2net:res2next50 resnest:resnest14d
resnet:test_resnet resnetv2:resnetv2_18 rexnet:rexnet_100 selecsls:selecsls42 senet:legacy_seresnet18
sequencer:sequencer2d_s shvit:shvit_s1 sknet:skresnet18 starnet:starnet_s050 swiftformer:swiftformer_xs
tiny_vit:tiny_vit_5m_224 tresnet:tresnet_m twins:twins_svt_small vgg:vgg11 visformer:visformer_tiny
vision_transformer_hybrid:vit_small_r26_s32_224 vitamin:vitamin_small_224 volo:volo_d1_224
vovnet:ese_vovnet19b_slim_dw xception:legacy_xception xception_aligned:xception41p xcit:xcit_nano_12_p8_224
"""
_FIXED = {  # these take one size only
    "coat": 224, "efficientformer": 224, "efficientformer_v2": 224, "efficientvit_msra": 224, "gcvit": 224,
    "levit": 224, "mvitv2": 224, "sequencer": 224, "swiftformer": 224, "twins": 224, "visformer": 224,
    "vision_transformer_hybrid": 224, "vitamin": 224, "volo": 224, "xcit": 224, "crossvit": 240, "byoanet": 256,
    "maxxvit": 256,
}  # fmt: skip


def _timm() -> Iterator[Model]:
    for entry in _TIMM.split():
        family, name = entry.split(":")
        yield Model("timm", family, name, image(_FIXED.get(family, 128)))


# ------------------------------------------------------------------------------------------------------ transformers

_TRANSFORMERS = """
ResNetForImageClassification RegNetForImageClassification MobileNetV1ForImageClassification
MobileNetV2ForImageClassification MobileNetV2ForSemanticSegmentation EfficientNetForImageClassification
BitForImageClassification ConvNextForImageClassification ConvNextV2ForImageClassification
SegformerForSemanticSegmentation PoolFormerForImageClassification MobileViTForImageClassification
MobileViTForSemanticSegmentation MobileViTV2ForImageClassification CvtForImageClassification
FocalNetForImageClassification TextNetForImageClassification HGNetV2ForImageClassification
SwiftFormerForImageClassification UperNetForSemanticSegmentation GLPNForDepthEstimation
"""


def _transformers() -> Iterator[Model]:
    for name in _TRANSFORMERS.split():
        yield Model("transformers", name.partition("For")[0], name, image(128))


# -------------------------------------------------------------------------------------- segmentation_models_pytorch

# Every decoder on one encoder, and encoders of other families below one decoder.
_DECODERS = "UnetPlusPlus MAnet Linknet FPN PSPNet PAN DeepLabV3 DeepLabV3Plus UPerNet Segformer"
_ENCODERS = """
resnet18 mobilenet_v2 efficientnet-b0 densenet121 vgg11_bn se_resnet50 dpn68 mit_b0 mobileone_s0 xception inceptionv4
timm-resnest14d timm-skresnet18 tu-convnext_atto tu-hrnet_w18_small
"""


def _smp() -> Iterator[Model]:
    for encoder in _ENCODERS.split():
        yield Model("smp", "Unet", f"Unet-{encoder}", image(64))
    for decoder in _DECODERS.split():
        yield Model("smp", decoder, f"{decoder}-mobilenet_v2", image(128 if decoder == "PAN" else 64))
    attention = {"decoder_attention_type": "scse", "aux_params": {"classes": 4}}
    yield Model("smp", "Unet", "Unet-resnet34", image(64), attention)


MODELS: tuple[Model, ...] = (*_torchvision(), *_pytorchcv(), *_timm(), *_transformers(), *_smp())


def families_of_pytorchcv() -> dict[str, list[str]]:
    """Every module of the installed pytorchcv that provides models, with their names."""
    provider = importlib.import_module("pytorchcv.model_provider")
    names: dict[str, list[str]] = {}
    for name, function in provider._models.items():
        with contextlib.suppress(AttributeError):
            names.setdefault(function.__module__.rpartition(".")[2], []).append(name)
    return names
