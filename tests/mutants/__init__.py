"""Planted bugs, one at a time, and the tests that must find each of them.

    make mutants                               all of it, two at a time
    make mutants PART=kernel,raft              some parts (files in `planted/`)
    make mutants ONLY='a filler'               every bug whose name has this text
    make mutants LIST=1                        what there is, and how long it takes, without running anything

A green test suite says what it looked at and not what it would have missed. So `planted/` has a catalogue of bugs as a
programmer might make them with good intentions: a bound that is off by one, a sync that is missing, two effects in the
wrong order, a forgotten rollback. Each names the layer that must find it: test files, cargo tests, or the simulator.

How one bug is tried
- The runner works in a private copy of the tree (`private_copy`), with an own environment whose `tallystick` is that
  copy, also in processes that tests start. The work tree is never changed. A canary shows first that a bug planted in
  the copy is what the tests import.
- Every detector is run once without a bug, and must pass.
- The bug's text is planted, the detector runs in a fresh process and stops at its first failure, the text is restored.
  For pytest that process is a fork of one that has imported pytest and the libraries, and nothing of the copy (`warm`).
- The verdict is `found` (a test failed), `timeout` (the detector did not end: it counts as found and is listed),
  `survived`, or `invalid`: the copy could not be built or imported, so nothing was learnt.

A survivor is a gap in the tests, or the change makes no difference. In the second case the catalogue says why
(`equivalent`). A survivor without a reason, an invalid bug, and an old text that does not occur exactly once all make
the run fail. `tests/test_mutants.py` checks the catalogue in the normal suite, so that a refactoring takes its bugs
along.

    catalogue      the bugs, read and checked
    private_copy   the tree to plant them in
    detectors      running a layer, and what its result means
    warm           pytest in forked processes
    simulate       the Raft simulator as a detector
    times          how long each bug took, for the estimate
    report         the table at the end
"""
