"""Names of methods and functions that tell what a call of them does to what it is called with."""

from __future__ import annotations

BY_METHOD = """append appendleft add clear discard extend extendleft fill insert intersection_update itemset pop popitem
    popleft push put put_nowait get_nowait remove resize reverse rotate seek set setdefault setfield sort subtract truncate
    update write writelines symmetric_difference_update difference_update writerow move_to_end read readline send throw
    reset crop seed manual_seed register_forward_hook register_forward_pre_hook enable_truncation no_truncation
    enable_padding no_padding register_buffer load_state_dict __setitem__ __delitem__ __setattr__ __iadd__"""
BY_FUNCTION = """next setattr delattr copyto heappush heappop heapify heappushpop heapreplace shuffle insort insort_left
    insort_right setitem delitem iadd place put putmask fill_diagonal put_along_axis"""
GIVING_PARTS = """get setdefault values items pop view reshape numpy ravel squeeze unsqueeze detach to cpu cuda float double
    half bfloat16 long int contiguous view_as expand expand_as permute transpose swapaxes __getitem__"""
SHOWING_PARTS = "enumerate zip reversed iter next sorted filter type list tuple set max min"
KEEPING_NOTHING = "super isinstance type getattr hasattr setattr delattr id repr str print callable"
COPYING = """len str repr print isinstance hash id bool float int sum any all abs round dumps range hasattr getattr callable
    issubclass format join"""
READING = (
    "get items keys values index count copy union intersection difference issubset issuperset startswith endswith __getitem__"
)
COUNTING = """mean sum tolist item size dim numel astype copy clone max min argmax argmin abs dot matmul any all std var shape
    dtype softmax sigmoid round floor nonzero tobytes norm"""
OF_NUMBERS = """where matmul mm bmm dot normalize einsum tensor array stack cat concatenate vstack hstack linear
    cosine_similarity cdist multiply add subtract divide isin allclose equal sum mean"""
FILLING_THIRD = "add subtract multiply divide matmul dot"
STARTING = "submit map Thread Process partial Timer run apply apply_async call_soon register"
TELLING = "set_ add_ del_ clear_ update_ enable_ disable_ fit partial_fit load_adapter load_lora paste"
KEEPING_STILL = """acquire release start stop wait notify notify_all open close flush join sleep eval to cuda cpu compile warmup
    warm_up share_memory inc dec observe count gauge histogram timing increment decrement incr decr emit"""
LOGGING = "debug info warning error exception critical log"
CHANGING = "add_ set_ train fit partial_fit register enable_ disable_ push reset save load del_ clear_ update_ init_ open close"

MUTATORS = frozenset(BY_METHOD.split())  # methods that change what they are of
CHANGE_FIRST = frozenset(BY_FUNCTION.split())  # functions that change their first argument
FILL_THIRD = frozenset(FILLING_THIRD.split())  # functions of arrays that may be given a third one, to write into
GIVE_PARTS = frozenset(GIVING_PARTS.split())  # methods that give a part of what they are of, or that itself
SHOW_PARTS = frozenset(SHOWING_PARTS.split())  # functions that give parts of their arguments, or one of them
HARMLESS = frozenset(KEEPING_NOTHING.split())  # functions that may be given the handler itself
COPY = frozenset(COPYING.split())  # functions that give nothing of their arguments, and change nothing in them
READ = frozenset(READING.split())  # methods of containers that change nothing
COUNT = frozenset(COUNTING.split())  # methods of arrays and tensors that give new ones, and change nothing
NUMBERS = frozenset(OF_NUMBERS.split())  # functions of arrays and tensors that give new ones, and change nothing
LOG = frozenset(LOGGING.split())  # methods that write what they are given
STILL = frozenset((*KEEPING_STILL.split(), *LOGGING.split()))  # methods that give nothing and keep nothing of a request
START = frozenset(STARTING.split())  # functions that call what they are given, at any time
SAYING = tuple(TELLING.split())  # how names of other such methods begin
SETTING = tuple(CHANGING.split())  # how methods of trusted objects begin that change these


def says_that_it_changes(method: str) -> bool:
    """Whether a method's name says that it changes what it is of."""
    return method in MUTATORS or method.startswith(SAYING) or (method.endswith("_") and not method.endswith("__"))
