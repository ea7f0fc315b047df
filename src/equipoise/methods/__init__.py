"""Methods, one small file each, and everything that an author of a method needs.

    from equipoise.methods import Fit, Method, Step

docs/add-a-method.md explains the hooks. ``registry.py`` finds the methods by name.
"""

from equipoise.core.distributed import all_reduce_sum, subset_mean, world_size
from equipoise.core.ranges import Epochs, Fraction, Length, Positive, Range, Temperature, Weight
from equipoise.core.seeding import Key, generator, seed_for
from equipoise.data.augment import Augment
from equipoise.data.images import Images, join
from equipoise.data.memory import Memory
from equipoise.data.split import hold_out
from equipoise.data.stream import Step
from equipoise.errors import UsageError
from equipoise.learn.align import align_head, head_norms, unit_head
from equipoise.learn.backbones import Architecture
from equipoise.learn.backbones.base import Backbone, conv3x3, initialise
from equipoise.learn.balanced import finetune_head
from equipoise.learn.class_means import class_means, nearest_mean
from equipoise.learn.closed_form import ClosedForm
from equipoise.learn.fit import Fit
from equipoise.learn.head import Head
from equipoise.learn.importance import ImportanceMethod, mean_over_images
from equipoise.learn.losses import distill, distill_groups, distillation_weight, sigmoid_distill, weighted_distill
from equipoise.learn.method import Method
from equipoise.learn.ridge import Moments, RidgePath, choose_ridge, fit_ridge
from equipoise.learn.saved_state import check_part, check_width
from equipoise.learn.schedule import Schedule
from equipoise.learn.variant import Variant

__all__ = [
    "Architecture",
    "Augment",
    "Backbone",
    "ClosedForm",
    "Epochs",
    "Fit",
    "Fraction",
    "Head",
    "Images",
    "ImportanceMethod",
    "Key",
    "Length",
    "Memory",
    "Method",
    "Moments",
    "Positive",
    "Range",
    "RidgePath",
    "Schedule",
    "Step",
    "Temperature",
    "UsageError",
    "Variant",
    "Weight",
    "align_head",
    "all_reduce_sum",
    "check_part",
    "check_width",
    "choose_ridge",
    "class_means",
    "conv3x3",
    "distill",
    "distill_groups",
    "distillation_weight",
    "finetune_head",
    "fit_ridge",
    "generator",
    "head_norms",
    "hold_out",
    "initialise",
    "join",
    "mean_over_images",
    "nearest_mean",
    "seed_for",
    "sigmoid_distill",
    "subset_mean",
    "unit_head",
    "weighted_distill",
    "world_size",
]
