"""The network between islands: the store where they meet, communicators between counterparts, one decision for all."""

from loco_train.transport.ballot import Ballot as Ballot
from loco_train.transport.counterparts import Counterparts as Counterparts
from loco_train.transport.handshake import compare_documents as compare_documents
from loco_train.transport.handshake import share as share
from loco_train.transport.store import connect_rendezvous as connect_rendezvous
from loco_train.transport.store import serve_rendezvous as serve_rendezvous
