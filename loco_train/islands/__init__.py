"""One island: model, engines, inner optimizer and parameter views. The only door to DeepSpeed."""

from loco_train.islands import backends as backends  # first: it silences what the other imports would print
from loco_train.islands.engine import Engine as Engine
from loco_train.islands.engine import StepResult as StepResult
from loco_train.islands.engine import build_engine as build_engine
from loco_train.islands.initial import initial_values as initial_values
from loco_train.islands.layout import Layout as Layout
from loco_train.islands.layout import join_island as join_island
from loco_train.islands.views import CopiesDiffer as CopiesDiffer
from loco_train.islands.views import ParameterViews as ParameterViews
