"""The format that an answer must have: text, any JSON object, or JSON that matches a schema.

The two surfaces spell the last one differently.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from agents.turn import AnswerFormat
from worker.wire.function_tools import Description, bounded, constrainable
from worker.wire.strict import Name, Strict, Tagged, note

ANY_OBJECT = {"type": "object"}
BoundedSchema: TypeAlias = Annotated[dict[str, Any], AfterValidator(bounded)]
AnswerSchema: TypeAlias = Annotated[BoundedSchema, AfterValidator(constrainable)]


class PlainText(Strict):
    type: Literal["text"] = "text"

    def answer(self, param: str) -> AnswerFormat | None:
        return None

    def echo(self) -> dict[str, Any]:
        return {"type": self.type}


class AnyJson(Strict):
    type: Literal["json_object"]

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(ANY_OBJECT, param)

    def echo(self) -> dict[str, Any]:
        return {"type": self.type}


class NamedSchema(Strict):
    """With `strict`, answers always match the schema, or it is refused. Otherwise what no grammar can enforce of it is
    ignored, and reported as that."""

    place: ClassVar[str] = "response_format.json_schema.schema"

    name: Name
    strict: bool | None = None  # before the schema, whose validation depends on it
    body: BoundedSchema = Field(alias="schema")
    description: Description | None = None

    @field_validator("body")
    @classmethod
    def _is_enforced(cls, body: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        try:
            return constrainable(body)
        except ValueError:
            if info.data.get("strict"):
                raise
            note(info, cls.place)
            return body


class SchemaFormat(NamedSchema):
    """The format of /v1/responses."""

    place: ClassVar[str] = "text.format.schema"

    type: Literal["json_schema"]

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(self.body, param, strict=bool(self.strict))

    def echo(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.body,
            "strict": bool(self.strict),
        }


class NestedSchemaFormat(Strict):
    """The format of chat completions."""

    type: Literal["json_schema"]
    json_schema: NamedSchema

    def answer(self, param: str) -> AnswerFormat | None:
        return AnswerFormat(self.json_schema.body, param, strict=bool(self.json_schema.strict))


_BY_TYPE = Tagged("A format must have the type text, json_object or json_schema.")
TextFormat: TypeAlias = Annotated[PlainText | AnyJson | SchemaFormat, _BY_TYPE]
ChatFormat: TypeAlias = Annotated[PlainText | AnyJson | NestedSchemaFormat, _BY_TYPE]
