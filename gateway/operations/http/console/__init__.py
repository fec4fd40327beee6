"""
The console: the operations of the command line as pages for a browser. ``server`` decides who is let in and
carries out what is asked; ``views`` says what each page shows; ``templates`` how. Every page and every button
calls an operation (`gateway.operations.operation_registry`), so what a command refuses, a page refuses.
"""
