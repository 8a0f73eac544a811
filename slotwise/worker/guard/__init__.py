"""A guard around a stranger's handler: their code untouched, and a bad request costs nobody but its sender.

    server's batch --whole--> theirs --a list of the right length--> answers
                        \\-- raises, or anything else --> isolation --> halves, each with a context of its own slots

entry finds theirs and answers batches with it; batches is the isolation around theirs; slots is what theirs sees and sets;
blame says what the guilty get; sending makes of each result the bytes that the server would send.
"""
