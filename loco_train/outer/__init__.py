"""The outer methods: tensors in, tensors out; the network is a protocol passed in."""

from loco_train.outer.communicator import Communicator as Communicator
from loco_train.outer.communicator import Pending as Pending
from loco_train.outer.communicator import Together as Together
from loco_train.outer.communicator import set_out as set_out
from loco_train.outer.draw import Draw as Draw
from loco_train.outer.method import OuterMethod as OuterMethod
from loco_train.outer.methods import outer_method as outer_method
from loco_train.outer.state import OuterState as OuterState
