"""A guard around a stranger's handler: their code untouched, and a bad request costs nobody but its sender.

    server's batch --whole--> theirs --a list of the right length--> answers
                        \\-- raises, or anything else --> isolation --> halves, each with a context of its own slots

guarded_handler is what the server calls, foreign_handler finds the stranger's, batches isolates its requests. slots is what it
sees and sets, held_metrics what it counts. blame says what the guilty get; owned encodes a result as the server would.
"""
