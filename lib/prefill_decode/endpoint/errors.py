"""Errors: what a client is told, in the shape of OpenAI's interface."""

from typing import Any

TYPES = {  # by status; the rest of 4xx is the client's request, the rest of 5xx the server's fault
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer other than 200: one clear sentence, and the parameter that it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    def body(self) -> dict[str, Any]:
        rest = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": TYPES.get(self.status, rest),
                "param": self.param,
                "code": self.code,
            }
        }


def refuse(param: str, message: str) -> ApiError:
    """A parameter that cannot be what it is."""
    return ApiError(400, message, param=param, code="invalid_value")
