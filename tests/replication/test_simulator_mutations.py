"""What the simulator is worth: mistakes that are planted in the core, each of them found."""

import sys
from pathlib import Path

import pytest

FOLDER = str(Path(__file__).resolve().parent)
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from simulator.mutations import MUTATIONS, Edit, Mutation, MutationError, planted  # noqa: E402
from simulator.profiles import PROFILES  # noqa: E402
from simulator.simulation import Simulation  # noqa: E402

from tallystick.replication import raft  # noqa: E402

pytestmark = pytest.mark.simulation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_is_found(mutation: Mutation) -> None:
    core = planted(mutation)
    for seed in range(mutation.seeds):
        outcome = Simulation(seed, PROFILES[mutation.profile], raft=core).run()
        # An exception is a finding as well, but might also say that the mutation itself makes no sense.
        if outcome.invariant not in (None, "no exception"):
            return
    pytest.fail(f"not found in {mutation.seeds} runs of {mutation.profile}")


def test_planting_leaves_the_product_as_it_is() -> None:
    core = planted(MUTATIONS[0])
    assert core is not raft.Raft
    assert sys.modules["tallystick.replication.raft"] is raft
    assert planted(Mutation("none", "", "storm", ())) is not core


def test_a_mutation_that_no_longer_applies_is_reported() -> None:
    with pytest.raises(MutationError, match="0 times: no such text"):
        planted(Mutation("moved away", "", "storm", (Edit("raft", "no such text", ""),)))
    with pytest.raises(MutationError, match="times: return"):
        planted(Mutation("anywhere", "", "storm", (Edit("raft", "return", ""),)))
