class Headers:
    """Sets a status, a content type and headers; answers with a header of its request. It describes itself."""

    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"answers": "the header color", "requests": len(data)}]
        for i in range(len(data)):
            asked = context.get_request_header(i, "x-status") or "200"
            context.set_response_status(code=int(asked), phrase="as asked", idx=i)
            context.set_response_content_type(i, "text/plain")
            context.set_response_header(i, "x-made-by", "headers")
            context.set_response_header(i, "content-language", "en")
        return [str(context.get_request_header(i, "color")) for i in range(len(data))]
