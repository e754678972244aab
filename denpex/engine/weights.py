"""What each kind of evidence is worth: log-likelihood ratios (nats) for "this rank is the origin" against "it is not".

Hand-set from the prototype's measurements (156 fault runs of 4 ranks with noise, skewed clocks and lost evidence); each
line says what the evidence is. A sum over a rank's evidence goes into a softmax over all ranks and "a rank unknown".
"""

from __future__ import annotations

from typing import Final

# A kernel record that root collected names this rank's process, memory group or GPU.
KERNEL_PROCESS: Final = 5.0
# The same in a kernel log that others can write (a text file, another facility).
KERNEL_CLAIMED: Final = 3.5
# A kernel record of the rank's node that names no process of the job.
KERNEL_NODE: Final = 2.5
# Slurm reports an out-of-memory kill in the step on this rank's node, and this rank was killed.
SLURM_OOM: Final = 3.5
# Slurm calls the job or step OUT_OF_MEMORY without naming a node, and this rank was killed.
SLURM_OOM_SOMEWHERE: Final = 2.5
# A root cause in the rank's own output that no progress followed.
ORIGIN_LINE: Final = 3.0
# The same, where only the generic reading (an exception of any kind) fits.
ORIGIN_GENERIC: Final = 2.6
# A root cause of its own that progress followed: survived, or latching; the pattern does not say.
ORIGIN_SURVIVED: Final = 1.2
# A specific root cause that it printed only after it had complained of others.
ORIGIN_AFTER_COMPLAINT: Final = 0.8
# A file system of its node was full when it failed in writing.
FULL_DISK: Final = 0.5
# Ended by a signal that a crash raises (SEGV, BUS, ABRT, ILL, FPE) and nobody sends.
CRASH_SIGNAL: Final = 3.0
# Ended by a signal that others send, while no other rank shows a failure of its own.
KILL_SIGNAL: Final = 3.0
# The same, where another rank failed by itself and the clocks do not say which was first.
KILL_UNSURE: Final = 0.5
# Ended by a signal after another rank had failed, or told to end from outside: the launcher ends the others.
ENDED_BY_LAUNCHER: Final = -1.0
# A bad exit status and not a word of why, though all it printed was captured.
EXIT_WITHOUT_WORD: Final = 2.5
# The only rank that does not complain of a peer, and its words or its end were not captured.
LEFT_OVER: Final = 2.0
# Nothing is known of its end, its node left no epilog, and the others complain of a peer.
NODE_LOST: Final = 3.0
# A bad exit status beside a root cause in its own words.
EXIT_WITH_WORD: Final = 0.5
# Exit status 0 while the others still ran and then failed.
EARLY_EXIT: Final = 2.5
# Another rank's message names this one as missing, lagging or failed.
ACCUSED: Final = 2.5
# Its watchdog's numbers say that it had enqueued less than the others waited for.
LAGGING: Final = 3.5
# Its flight recorder, dumped later than that, does not have a collective that others wait in.
FLIGHT_MISSING: Final = 3.5
# ... and of no other rank that can be so.
FLIGHT_ONLY_MISSING: Final = 3.0
# Its flight recorder has another call than most ranks' under the first number at which they differ.
FLIGHT_DIFFERS: Final = 3.5
# It alone called a collective that its own calls before do not foretell, and the others went on elsewhere.
FLIGHT_AHEAD: Final = 5.2
FLIGHT_AHEAD_ALONE: Final = 2.4
# It waited for the rank that is missing.
FLIGHT_FURTHER: Final = -2.5
# All others dumped their flight recorder in their wait, and it did not.
FLIGHT_UNDUMPED: Final = 2.0
# Alive and silent while others waited in vain; its output was captured to the end, or it was seen alive then.
SILENT: Final = 2.0
# The same where the capture ended at an unknown moment.
SILENT_PERHAPS: Final = 0.7
# ... and the only one.
ONLY_SILENT: Final = 2.5
# ... and its process was seen stopped or stuck.
SEEN_STUCK: Final = 3.0
# Its progress is the only one that is behind all others'.
ONLY_BEHIND: Final = 2.0
# It never timed out itself, and complained more than a second after all that did.
LAST_TO_COMPLAIN: Final = 3.0
# An earlier run had a hardware fault on its GPU, and what it fails of is how such a fault shows.
HISTORY: Final = 1.0
# Nothing but consequences of something elsewhere.
ONLY_CASCADE: Final = -3.0
# Its first sign precedes every consequence for certain.
CERTAINLY_FIRST: Final = 1.2
# It ended more than 50 ms before any other rank.
FIRST_END: Final = 0.8
# It was ended by a signal certainly after the others had complained.
CERTAINLY_LATE: Final = -1.5
# "A rank that is not known": always possible ...
UNKNOWN_RANK: Final = 0.0
# ... more so where the best suspect is only a generic exception and some rank's words were not captured ...
UNKNOWN_UNHEARD: Final = 1.0
# ... and most where silence is what speaks against it: an uncaptured rank is as silent.
UNKNOWN_SILENT: Final = 3.5

# Process ends closer than this are not ordered, whatever the clocks say (reaper and pipe latency: -21 to +156 ms).
UNORDERED_ENDS_NS: Final = 50_000_000
# A rank that complains this much later than those that timed out was still coming.
LATER_NS: Final = 1_000_000_000
# Below this posterior no single rank is named.
NAME_RANK: Final = 0.6
# Ranks within this of the best are a tie.
TIE: Final = 0.7
# Confidence is taken down by these where evidence is missing.
NO_CLOCK: Final = 0.95
NO_EXITS: Final = 0.85
UNHEARD: Final = 0.9
# A class that history gives, where this run's own instruments do not, is at most so sure.
BY_HISTORY: Final = 0.8
# No verdict claims more than this.
MOST: Final = 0.98
