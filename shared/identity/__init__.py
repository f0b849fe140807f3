"""Who asks, and what they may do: one room for every service that people and programs reach.

People come through a platform's proxy (`forwarded`) or an OpenID provider (`oidc`), programs with a token of
ours; on one's own machine everybody is `local`. `guard.Guard` stands around an app and lets nothing pass that
is not allowed; an app behind it reads `person_of(request)`.
"""
